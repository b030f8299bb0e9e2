"""`sweeper watch`: a sweep on the whole screen, live, with keys to steer it."""
