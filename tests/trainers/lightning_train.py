#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer with Lightning, which puts a DistributedSampler in front of the loader by itself."""

import os
import time

import lightning
import torch
from digits_train import NumberedDigits, arguments, build_model, write_report
from torch import nn
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self, step_s):
        super().__init__()
        self.model, self.step_s = build_model(), step_s
        self.losses, self.samples = [], []

    def on_train_epoch_start(self):
        self.samples.append([])

    def training_step(self, batch, _):
        time.sleep(self.step_s)
        pixels, labels, numbers = batch
        loss = nn.functional.cross_entropy(self.model(pixels), labels)
        self.losses.append(loss.item())
        self.samples[-1] += numbers.tolist()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    parser = arguments("trains with Lightning")
    parser.add_argument("--step", type=float, default=0, help="seconds that each step takes longer, as a larger model's does")
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", 1))
    lightning.seed_everything(args.seed)
    torch.set_num_threads(1)
    module = Module(args.step)
    loader = DataLoader(NumberedDigits(args.train), batch_size=args.batch, shuffle=True, num_workers=args.workers)
    trainer = lightning.Trainer(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
                                max_epochs=args.epochs, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, loader)
    write_report(args, trainer.global_rank, trainer.world_size, module.losses, module.model, module.samples)


if __name__ == "__main__":
    main()
