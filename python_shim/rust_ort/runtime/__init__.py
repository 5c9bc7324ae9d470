"""From a Dynamo graph to what ONNX Runtime computes of it.

| file | what it does |
|---|---|
| compilation.py | Dynamo graph, AOTAutograd, plan, prepared parts |
| kept_plans.py | what the daemon keeps of an export for later processes |
| compiled_graph.py, fast_path.py | the call of a compiled graph; of one that is a single part |
"""
