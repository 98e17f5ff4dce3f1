"""The decisions on the queue's side of a commit. Pure: no await, no clock, no random numbers, no logging."""
