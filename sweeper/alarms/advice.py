"""What sweeper advises when a rule has found something wrong with a run."""

ADVICE = {
    "nan": "look at the step before in `sweeper show`; lower the learning rate, clip gradients, "
    "then `sweeper retry` from a checkpoint before it",
    "divergence": "stop it (`sweeper cancel`), and launch with a learning rate three to ten times "
    "lower, or a longer warm-up",
    "spike": "look at the batch of that step; if the loss does not come back, lower the learning "
    "rate or clip gradients",
    "collapse": "stop it, and go on from an earlier checkpoint with a lower learning rate; read "
    "`sweeper rollouts` for what it writes now",
    "entropy": "raise entropy_coef or the temperature, lower the learning rate, or start from a "
    "model that is right now and then",
    "kl": "lower the learning rate, take fewer substeps, or check that sampler and trainer have "
    "the same model and settings",
    "no_signal": "read `sweeper rollouts`: the task may be too hard, the reward broken, or "
    "max_tokens too short for any answer; warm up with SFT, or make the reward denser",
    "judge_failed": "mend the reward function, verifier or grader and `sweeper retry`; all errors "
    "are in `iteration_*/reward_failures.jsonl` of the run",
    "length": "read `sweeper rollouts`; lower max_tokens or the temperature, or take the length "
    "into the reward",
    "truncation": "raise max_tokens, or ask for shorter answers: what is cut off earns nothing",
    "stalled": "look at `sweeper logs`: does the service answer, does the recipe wait for a lock? "
    "`sweeper cancel` and `sweeper retry` start it again",
    "paused": "wait, lower launch.max_parallel, or ask for more quota; nothing is lost meanwhile",
    "heartbeat": "is its machine alive, and does it reach the store? the run is taken for lost "
    "once the backend knows its job no more",
    "metric": "name a recorded key in `metric`, or have the program write it to its metrics "
    "file: without it there is no report, and no best run",
    "service": "start it again (`sweeper engine start`), or see that it is reached from there; "
    "runs on the engine then go on from their last checkpoints, others by `sweeper retry`",
    "disk": "make room on that machine: `sweeper gc`, older runs, checkpoints",
    "memory": "run fewer at once there (launch.max_parallel), or ask the backend for more memory",
}
"""What to do about an alarm of each rule."""
