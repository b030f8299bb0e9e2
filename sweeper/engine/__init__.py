"""The engine: a local Tinker-compatible service that really trains and samples, on a CPU.

    lifecycle, foreground            start, find and stop the engine (standard library only); serve
    access_token, request_checks     the engine's token, and checks before a request is handled
    tiny, models, hub                built-in models, models from a directory, tokenizers
    model_aliases                    names of hosted models that stand for the tiny model
    net, sampling, prefixes          the transformer: forward, exact backward, generation, and the
                                     cache of prompts
    lora, losses, optimizer          adapters, loss functions and AdamW
    batches, checkpoints, exports    input data, saved weights, weights for other programs
    scheduler, state, operations     queues of requests, sessions with their runs, and the work
    limits, admission, meter         limits, who must wait for them, and usage by session
    wire, service, app, server       the SDK's protocol over HTTP, and the server process
    listing, searching, refusals     listings, search, and requests that are not supported

`docs/engine.md` says what the engine supports.
"""
