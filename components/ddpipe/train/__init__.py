"""What runs inside a training job's processes: `python -m ddpipe.train`.

recipe, auto, constants    what is trained, and how the data decide what is left open; without torch
train, start, initial               where it begins: new, from a checkpoint, from other weights
loop, step, batches                 the training: steps, and the images of each
objective, optimizer                what is minimized, and how weights change
strategies, replicated, fully_sharded    how ranks share a model
timetable, journal, saver           how many steps, what is seen of them, what is stored
"""
