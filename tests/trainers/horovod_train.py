#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer with Horovod: its allreduce in the optimizer, torch's DistributedSampler."""

import horovod.torch as hvd
import torch
from digits_train import NumberedDigits, arguments, build_model, write_report
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main():
    args = arguments("trains with Horovod").parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = build_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=2e-3),
                                         named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    data = NumberedDigits(args.train)
    sampler = DistributedSampler(data, hvd.size(), hvd.rank(), seed=args.seed)
    losses, samples = [], []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        samples.append([])
        for pixels, labels, numbers in DataLoader(data, args.batch, sampler=sampler, num_workers=args.workers):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            samples[-1] += numbers.tolist()
    write_report(args, hvd.rank(), hvd.size(), losses, model, samples)


if __name__ == "__main__":
    main()
