"""Mirror descent on a transformer of your own, with groups and a schedule."""

import torch
from torch import nn

from attnbook.mirror_descent.optimizer import MirrorDescent

for p in (1.5, 2.0, 3.0):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    head = nn.Sequential(nn.Flatten(), nn.Linear(6 * 32, 10))
    model = nn.Sequential(nn.Embedding(10, 32), layer, head)
    digits = torch.randint(10, (300, 6))
    largest = digits.amax(dim=1)  # to be learned: the largest of six digits

    attention = layer.self_attn.in_proj_weight  # queries, keys and values
    others = [w for w in model.parameters() if w is not attention]
    groups = [
        {"params": [attention], "p": p, "lr": 0.05 * (p - 1)},
        {"params": others, "weight_decay": 1e-4},
    ]
    optimizer = MirrorDescent(groups, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    start = attention.detach().clone()
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(digits), largest)
        loss.backward()
        optimizer.step()
        scheduler.step()

    change = (attention.detach() - start).square().flatten().sort().values
    part = change[-len(change) // 10 :].sum() / change.sum()
    print(
        f"p = {p}: loss {loss:.4f}; a tenth of the weights did {part:.3f} of the change"
    )
