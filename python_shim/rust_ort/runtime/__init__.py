"""From a Dynamo graph to what ONNX Runtime computes of it.

| file | what it does |
|---|---|
| dynamo_graph.py | a Dynamo graph on its way through AOTAutograd |
| cache_key.py | a plan's cache key beside its graph |
| preparation.py | the parts of a plan with their models, handed to the daemon |
| refusal.py | which node to leave to eager where the runtime refuses a model |
| compilation.py | Dynamo graph, AOTAutograd, plan, prepared parts: all of it in order |
| dynamic_shapes.py, capture.py | which sizes are dynamic, and a model's forward as one AOT graph, without a daemon |
| assumptions.py | what torch assumed of sizes, as one reads it |
| forward_call.py, forward_names.py, forward.py | a call whose sizes may change as ONNX: arguments, names, the trace |
| kept_plans.py | what the daemon keeps of an export for later processes |
| compiled_graph.py, fast_path.py | the call of a compiled graph; of one that is a single part |
"""
