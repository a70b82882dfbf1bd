"""The training loop: distributed, resumable at any step, on the same batches for any number of processes.

What is trained is a pure function of recipe, dataset and world size: random numbers are keyed by seed, epoch,
step and rank, gradients are the mean over the global batch, and a checkpoint holds everything else. So a run
that was killed and started again ends with the same bits as one that was not.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ddpipe.data.manifest import DatasetManifest
from ddpipe.data.reader import SplitReader
from ddpipe.distributed import World
from ddpipe.errors import CheckpointError, Diverged, Interrupted, first_line
from ddpipe.model.checkpoint import Checkpoint
from ddpipe.model.scoring import logits_of
from ddpipe.model.tasks import TASKS
from ddpipe.model.tensors import parted
from ddpipe.model.training_record import parts_of
from ddpipe.storage import Store
from ddpipe.train import constants
from ddpipe.train.batches import Batch, batch_sizes, epoch_batches, global_batch, permutation, steps_per_epoch
from ddpipe.train.initial import check_resolution, initial_classifier, network_facts
from ddpipe.train.journal import Journal, Record, ResourceUsage, timed
from ddpipe.train.objective import training_objective
from ddpipe.train.optimizer import learning_rate
from ddpipe.train.recipe import AUGMENTATIONS, Recipe
from ddpipe.train.saver import Saver, SharedSaver
from ddpipe.train.step import StepMetrics, TrainingStep
from ddpipe.train.strategies import accept_single_values, is_sharded, strategy_named, synchronise
from ddpipe.train.timetable import (
    Budget,
    Patience,
    Timetable,
    TrainingRequest,
    TrainingWork,
    Watch,
    best_epoch,
    out_of_patience,
)

_log = logging.getLogger(__name__)


class Trainer:
    """A model in training, from where a checkpoint left it; `history` has a record for each epoch."""

    def __init__(
        self,
        recipe: Recipe,
        manifest: DatasetManifest,
        splits: Mapping[str, SplitReader],
        store: Store,
        world: World,
        saver: Saver | None,
        *,
        resumed: bool = False,
        budget: Budget | None = None,
        before_step: Sequence[Callable[[Trainer], None]] = (),
    ) -> None:
        """Start from the recipe's weights, or wait for `restore` if `resumed`."""
        self._recipe, self._manifest, self._splits = recipe, manifest, splits
        self._store, self._world, self._saver = store, world, saver
        self._shared_saver = SharedSaver(store, world, saver)
        self._before_step = before_step
        self._steps_per_epoch = steps_per_epoch(len(splits["train"]), recipe.batch_size)
        work = TrainingWork.planned(recipe, len(splits["train"]), len(splits["validation"]))
        self.step, self.timetable = 0, Timetable(work, recipe.epochs, budget)
        self.history: list[Record] = []
        sharded = is_sharded(recipe.strategy, world)
        self.classifier = initial_classifier(
            recipe, manifest, splits["train"], resumed=resumed, sharded_for=world.rank if sharded else None
        )
        if recipe.sync_batch_norm and world.size > 1:
            synchronise(self.classifier)
        accept_single_values(self.classifier)
        if world.is_main or not sharded:
            check_resolution(self.classifier, splits["train"].shape, recipe)
        self._objective = training_objective(recipe, manifest, splits["train"], world.device)
        self._metric = f"validation_{TASKS[manifest.task].scores[0]}"
        strategy = strategy_named(recipe.strategy, world)(self.classifier, splits["train"].shape, world)
        self._is_compiling = recipe.compile and world.device.type in constants.COMPILED_DEVICES
        if self._is_compiling:
            strategy.model.compile()
        self._training_step = TrainingStep(
            recipe,
            self.classifier,
            self._objective,
            strategy,
            world,
            steps=self.steps,
            parts=world.decided(lambda: parts_of(store)),
        )
        self._metrics = self._no_metrics()
        self._usage = ResourceUsage(world.device)
        may_wait = self._is_compiling or any(split.is_far for split in splits.values())
        self._patience = Patience(world, may_shorten=not world.max(int(may_wait)))
        self._epoch_began = time.monotonic()

    @property
    def steps(self) -> int:
        """Steps of the whole training, as far as that is decided."""
        return self.timetable.steps

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of the same recipe and dataset."""
        try:
            self._restore(checkpoint)
        except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                what="training cannot be resumed",
                which=f"{self._store.uri}/checkpoints",
                seen=f"the states of step {checkpoint.step} are not of this training: {first_line(error)}",
                do="Restore the checkpoint as it was written, or name another output for a new training.",
            ) from error

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.step, self.history = checkpoint.step, list(checkpoint.history)
        self.timetable.resume(checkpoint.step, checkpoint.schedule)
        self._training_step.steps = self.steps
        per_epoch = self._steps_per_epoch
        # A file from a bucket: its counts must belong together before anything is sized by them.
        inside = self.step - len(self.history) * per_epoch
        cut = per_epoch if self.step == self.steps else 1  # a budget may have ended the last epoch
        if not -cut < inside < per_epoch:
            raise ValueError(f"{self.step} steps and {len(self.history)} epochs")
        states, strategy = checkpoint.states, self._training_step.strategy
        if average := self._training_step.average:
            evaluated = states.pop("model")
            own = {name: evaluated[name] for name in average.weights}
            average.load(strategy.shares(own, average.weights))
            del evaluated, own  # each copy of a large model counts
        strategy.load_model(states.pop("training_model" if average else "model"))
        strategy.load_optimizer(self._training_step.optimizer, states.pop("optimizer"))
        if "scaler" in states:
            self._training_step.scaler.load_state_dict(states.pop("scaler"))
        self._metrics.restore(states.pop("metrics"))
        self._epoch_began = time.monotonic() - checkpoint.seconds

    def run(self, journal: Journal | None, watch: Watch) -> bool:
        """Take all steps that are left, or as many as make the model better; whether that is the end."""
        patience = self._recipe.patience
        while self.step < self.steps and not out_of_patience(self.history, self._metric, patience):
            epoch, first = divmod(self.step, self._steps_per_epoch)
            self.classifier.train()
            batches = timed(self._batches(epoch, first), self._usage.waited)
            for number, batch in enumerate(batches, start=first):
                if not self.poll(watch):
                    return False
                for act in self._before_step:
                    act(self)
                self.take(number, batch)
                if journal:
                    left = self.timetable.seconds_left(self.step)
                    journal.step(self.step, *self.timetable.done(self.step), left)
                if self.step >= self.steps:  # in the middle of an epoch, where a budget ends
                    break
            self._close_epoch(journal)
            watch.saved()
        return True

    def _batches(self, epoch: int, first: int) -> Iterator[Batch]:
        recipe, train = self._recipe, self._splits["train"]
        return epoch_batches(
            train,
            self._world,
            seed=recipe.seed,
            epoch=epoch,
            batch_size=recipe.batch_size,
            first=first,
            augmentation=AUGMENTATIONS.get(recipe.augmentation, AUGMENTATIONS["none"]),
        )

    def poll(self, watch: Watch) -> bool:
        """Poll for a request to save or to stop: what one rank is asked for, all do. Whether to continue."""
        if self._saver:
            self._saver.uploads.check()
        request = watch.agreed(self._world)
        if request is TrainingRequest.CONTINUE:
            return True
        self._save()
        watch.saved()
        if request is TrainingRequest.SAVE:
            return True
        if self._saver:
            self._saver.uploads.finish()
        # The first rank to end makes torchrun stop the others: all wait for the one that writes.
        self._world.barrier()
        if request is TrainingRequest.STOP:
            raise Interrupted(
                what="training was interrupted",
                which=self._store.uri,
                seen=f"stop requested at step {self.step} of {self.steps}; the state is saved",
                do=Interrupted.AGAIN,
            )
        return False

    def take(self, number: int, batch: Batch) -> None:
        """Take one step of the training."""
        began = time.monotonic()
        self._metrics.rows[number] = self._training_step.take(self.step, batch)
        if self._is_compiling:
            self._is_compiling = False
            if self._world.is_main:
                _log.info("first step: %.0f s, most of it to compile the network", time.monotonic() - began)
        self.step += 1
        self.timetable.tick(self.step, self._world)
        self._training_step.steps = self.steps
        if (number + 1) % constants.LOSS_CHECK_EVERY == 0:
            self._check_loss()
        self._patience.stepped()

    def _check_loss(self) -> None:
        """Sum the metrics of the steps since the last check over all ranks; the loss has to be a number."""
        epoch = len(self.history)
        number = self._metrics.reduce(self.step - epoch * self._steps_per_epoch)
        if number is None:
            return
        order = permutation(self._recipe.seed, epoch, len(self._splits["train"]))
        batch = global_batch(order, number, self._recipe.batch_size)
        ids = [self._splits["train"].sample_ids[index] for index in batch]
        if self._world.is_main:
            self._store.write("diverged.json", json.dumps({"samples": ids}, indent=1).encode())
        step = epoch * self._steps_per_epoch + number + 1
        named = ", ".join(ids[: constants.SAMPLES_NAMED])
        raise self._diverged(
            f"the loss of step {step} is not a number; "
            f"its {len(ids)} samples, listed in diverged.json, begin with {named}"
        )

    def _close_epoch(self, journal: Journal | None) -> None:
        """Validate, record and save."""
        self._patience.extend()
        self._check_loss()
        validation = self._validate()
        first = len(self.history) * self._steps_per_epoch
        sizes = batch_sizes(len(self._splits["train"]), self._recipe.batch_size)[: self.step - first]
        samples = int(sizes.sum())
        rates = [
            learning_rate(self._recipe, step, self.timetable.steps_at(step))
            for step in range(first, self.step)
        ]
        sums = self._metrics.rows[: self.step - first].cpu().numpy()
        training = dict(zip(self._objective.sums, (sums.sum(0) / samples).tolist(), strict=True))
        used = self._usage.epoch()
        self.history.append(
            {
                "epoch": len(self.history) + 1,
                "step": self.step,
                **{f"train_{name}": value for name, value in training.items()},
                **{f"validation_{name}": value for name, value in validation.items()},
                "learning_rate": rates[-1],
                "seconds": round(time.monotonic() - self._epoch_began, 3),
                **used,
                "memory": self._world.max(int(used["memory"])),
            }
        )
        if journal:
            epochs = -(-self.steps // self._steps_per_epoch)
            journal.epoch(self.history, (sums[:, 0] / sizes).tolist(), rates, epochs)
        self._metrics = self._no_metrics()
        self._epoch_began = time.monotonic()
        # Saved after the history has this epoch: a resumed training begins with the next one.
        self._save(best=best_epoch(self.history, self._metric) == len(self.history) - 1)

    def _validate(self) -> dict[str, float]:
        """Loss and headline score on the validation split, without class weights; the same on all ranks."""
        self.classifier.eval()
        step, split, task = self._training_step, self._splits["validation"], TASKS[self._manifest.task]
        size = min(-(-len(split) // self._world.size), constants.VALIDATION_BATCH)
        with step.average.in_place() if step.average else nullcontext(), step.autocast():
            classes = len(self._manifest.classes)
            logits = logits_of(self.classifier, split, self._world, classes=classes, batch_size=size)
        found = self._world.decided(lambda: task.validation(logits, split.labels))
        if not math.isfinite(found["loss"]):
            raise self._diverged(f"the validation loss after step {self.step} is not a number")
        return found

    def _no_metrics(self) -> StepMetrics:
        return StepMetrics(self._steps_per_epoch, len(self._objective.sums), self._world)

    def _save(self, *, best: bool = False) -> None:
        """Write a checkpoint of the last step; only of a state whose losses are numbers."""
        self._patience.extend()
        self._check_loss()  # sums the metrics over the ranks, too: a checkpoint holds no rank's own
        states, shares = parted(self._states())
        pieces = self._shared_saver.write(self.step, shares)
        if not self._saver:
            return
        recipe, manifest = self._recipe, self._manifest
        checkpoint = Checkpoint(
            step=self.step,
            epoch=len(self.history),
            recipe=recipe.to_dict(),
            dataset_id=manifest.dataset_id,
            network=network_facts(recipe, manifest),
            world_size=self._world.size,
            states=states,
            history=self.history,
            seconds=time.monotonic() - self._epoch_began,
            schedule=[list(one) for one in self.timetable.schedule],
            shapes={name: list(share.shape) for name, share in shares.items()},
            pieces=pieces,
        )
        self._saver.save(checkpoint, best=best)

    def _states(self) -> dict[str, Any]:
        """The states in a checkpoint: "model" is for evaluation, the others are for resuming."""
        step = self._training_step
        portable, weights = step.strategy.portable, self.classifier.state_dict()
        states = {
            "model": portable(weights),
            "optimizer": portable(step.optimizer.state_dict()),
            "metrics": self._metrics.rows[: self._metrics.reduced].clone(),
        }
        if step.scaler.is_enabled():
            states["scaler"] = step.scaler.state_dict()
        if step.average:
            states |= {
                "model": portable({**weights, **step.average.weights}),
                "training_model": states["model"],
            }
        return states

    def _diverged(self, seen: str) -> Diverged:
        return Diverged(
            what="training diverged",
            which=f"{self._recipe.model} in {self._store.uri}",
            seen=f"{seen} (learning rate {self._recipe.learning_rate:g})",
            do="Start a new run with a lower learning_rate.",
        )
