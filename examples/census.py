"""What does a captured graph retain, and is it still there after an update?"""

import torch
from coldproof.torch import Retention

if not torch.cuda.is_available():
    raise SystemExit("no CUDA device" if torch.version.cuda else "this torch has no CUDA")
model, x = torch.nn.Linear(64, 64).cuda(), torch.zeros(1, 64, device="cuda")
watch, graph, y = Retention(), torch.cuda.CUDAGraph(keep_graph=True), model(x)
with torch.cuda.graph(graph):
    y = model(x)
print(watch.capture({"decode": graph}, owned=model, **{"input-output": [x, y]}).addresses())
model.weight = torch.nn.Parameter(torch.ones_like(model.weight))  # the graph keeps the old one
print(*watch.judge(owned=model, **{"input-output": [x, y]}).stale, sep="\n")
