"""Mirror descent on a transformer of your own: one geometry for attention, another for the rest, and a schedule."""

import torch
from torch import nn

from attnbook.mirror_descent.optimizer import MirrorDescent

for p in (1.5, 2.0, 3.0):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(10, 32), layer, nn.Flatten(), nn.Linear(6 * 32, 10))
    digits = torch.randint(10, (300, 6))
    largest = digits.amax(dim=1)  # to be learned: the largest of six digits
    start = layer.self_attn.in_proj_weight.detach().clone()

    named = list(model.named_parameters())  # with names, an error says which parameter it is about
    attention = [(name, weight) for name, weight in named if "self_attn" in name and weight.ndim == 2]
    others = [(name, weight) for name, weight in named if not ("self_attn" in name and weight.ndim == 2)]
    groups = [{"params": attention, "p": p, "lr": 0.05 * (p - 1)}, {"params": others, "weight_decay": 1e-4}]
    optimizer = MirrorDescent(groups, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(digits), largest)
        loss.backward()
        optimizer.step()
        scheduler.step()

    change = (layer.self_attn.in_proj_weight.detach() - start).square().flatten().sort(descending=True).values
    share = change[: len(change) // 10].sum() / change.sum()
    print(f"p = {p}: loss {loss:.4f}; a tenth of the attention weights made {share:.0%} of the change")
