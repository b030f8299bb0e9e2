"""`sweeper watch`: a live full-screen view of a sweep, with keys to steer it."""
