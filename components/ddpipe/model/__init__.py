"""The model format, shared by its writer (train) and its readers (evaluate, export).

Names are known here, so that a recipe can be checked where there is no torch; `architectures` builds them.
"""

ARCHITECTURES = {
    "digits-cnn": "three 3x3 convolutions, 37,000 weights: for images from 4x4, such as digits",
}
"""Every network that can be trained: its name, and what it is."""
