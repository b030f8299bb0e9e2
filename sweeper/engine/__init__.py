"""The engine: a local Tinker-compatible service that really trains and samples, on a CPU.
docs/engine.md describes what it supports."""

# lifecycle, access_token          start, find and stop the engine, its token (standard library
#                                  only)
# tiny, models, hub                built-in models, models from a directory, tokenizers
# model_aliases                    names of hosted models that mean the tiny model
# net, sampling, prefixes          the transformer: forward, exact backward, generation, and the
#                                  cache of prompts
# lora, losses, optimizer          adapters, loss functions and AdamW
# batches, checkpoints, exports    input data, saved weights, weights for other programs
# recorded                         sampled sequences that some losses need
# scheduler, state, operations     queues of requests, sessions with their runs, and the work
# limits, meter                    simulated limits of a service, and usage by session
# wire, service, app, server       the SDK's protocol over HTTP, the requests, the process
# listing                          listings and the search for sessions
