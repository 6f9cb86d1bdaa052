#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer with Hugging Face Accelerate: the loop of its documentation, a shuffling DataLoader given to prepare()."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from digits_train import NumberedDigits, arguments, build_model, write_report
from torch import nn
from torch.utils.data import DataLoader


def main():
    parser = arguments("trains with Accelerate")
    parser.add_argument("--seedable", action="store_true", help="the seedable sampler")
    args = parser.parse_args()
    set_seed(args.seed)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=args.seedable))
    model = build_model()
    loader = DataLoader(NumberedDigits(args.train), batch_size=args.batch, shuffle=True, num_workers=args.workers)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=2e-3), loader)
    losses, samples = [], []
    for epoch in range(args.epochs):
        samples.append([])
        for pixels, labels, numbers in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            samples[-1] += numbers.tolist()
    write_report(args, accelerator.process_index, accelerator.num_processes, losses, accelerator.unwrap_model(model),
                 samples)
    accelerator.end_training()


if __name__ == "__main__":
    main()
