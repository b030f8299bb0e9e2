"""The engine: a local Tinker-compatible service that trains and samples for real on a CPU.

    lifecycle, foreground            start, find and stop it (standard library only); serve
    tiny, models, hub                the built-in model, models read from a directory, tokenizers
    net, sampling, prefixes          the transformer: forward, exact backward, generation, and
                                     prompts read before
    lora, losses, optimizer          what is trained, for what, and how
    batches, checkpoints, exports    data in, weights out
    scheduler, state, work           who waits for what, what is held, what is done for them
    limits, admission, meter         who must wait, and what each session used
    wire, app, server                the SDK's protocol over HTTP
    listing, searching, refusals     what is told of what is held, and what is not done here

`docs/engine.md` says what it does and what it does not.
"""
