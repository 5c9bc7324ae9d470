"""What is kept of graphs and their calls: dumps, eager's values beside the candidate's, and what comparing gave.

| file | what it does |
|---|---|
| graph_info.py | what is known of each graph that this process compiled |
| session.py | dumps, and which calls are in them |
| reference.py | eager's values of a graph |
| wide.py, spread.py | float64 beside eager: of a node alone, of a graph, of a model; how far rounding moves a value |
| opinion.py, sums.py, terms.py | what settles a mismatch: float64, other choices, what was added up |
| masked.py | scores that a huge mask swamps, in float64 as in float32 |
| in_order.py | what a sum loses that is taken in order |
| nodes.py | eager node by node beside the candidate, under compare="nodes" |
| values.py, state.py | the named values in what a model takes and gives; what a comparison puts back and copies |
| sides.py | the two runs of a comparison, and the pairs that they come to |
| turned.py | eager with the branches that rounding turned in what a forward saves |
| peer.py | whether torch.compile itself changes a value, by aot_eager |
| failures.py | graphs that failed to compile where Dynamo suppresses errors |
| limits.py | functions that met Dynamo's recompile limit, and their calls in eager |
| rules.py | what the rules of runtimes made of graphs; a warning of those that decide over nothing |
| placement.py | which execution providers have the nodes of graphs |
| reasons.py | nodes left to eager, as people read them |
| digits.py | numbers for people, as the command line has them |
| verdicts.py, report.py | by which tolerance, and why something is not compared; what it all came to |
"""
