"""What a search over hyperparameters looks for, on this machine or on a cluster: how far, and in which space.

No I/O, and no sampler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ddpipe.parameters import Between, OneOf, Parameters, parameter

MAX_FAILED = 3  # trials that may fail: a few values that cannot work are no reason to end, many are


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(Parameters):
    """What a search varies, and how far it goes."""

    heading: ClassVar[str] = "Search"
    what: ClassVar[str] = "the search cannot start"
    others: ClassVar[str] = "search_options"

    search: Sequence[str] = parameter(
        [],
        "Hyperparameter to search, repeatable: NAME=LOW..HIGH, NAME=log(LOW,HIGH), NAME=VALUE,VALUE, or NAME "
        "for its typical range.",
        form="search_space",
    )
    trials: int = parameter(20, "Number of trials.", Between(1, 1000), form="search_trials")
    parallel_trials: int = parameter(
        1,
        "Trials that run at the same time; with one, the same seed gives the same trials.",
        Between(1, 64),
        form="search_parallel_trials",
    )
    sampler: str = parameter(
        "tpe",
        "How values are proposed: tpe (from the trials so far) or random.",
        OneOf(("tpe", "random")),
    )
    pruning: str = parameter(
        "median",
        "Which trials stop early, judged by the validation metric of each epoch: median (worse than half of "
        "the others), or none.",
        OneOf(("median", "none")),
    )

    def conflicts(self) -> Iterator[str]:
        """What is wrong with values that are valid one by one."""
        if self.pruning != "none" and any(text.partition("=")[0].strip() == "epochs" for text in self.search):
            yield (
                "`search` epochs needs `pruning` none: trials of different "
                "length cannot be compared epoch by epoch"
            )
