"""What the trainer tells its story with; `worker/train.py` reads top to bottom and calls these."""
