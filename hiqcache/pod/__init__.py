"""The machine and the containers that servers run on: checked before, watched while they start."""
