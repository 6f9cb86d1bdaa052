#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer with the Trainer of Hugging Face transformers."""

import os
import tempfile

import torch
from digits_train import NumberedDigits, arguments, build_model, write_report
from torch import nn
from transformers import Trainer, TrainingArguments


class Model(nn.Module):
    """What the Trainer wants: a loss from forward(); it also notes which samples came."""

    def __init__(self):
        super().__init__()
        self.model = build_model()
        self.losses, self.numbers = [], []

    def forward(self, pixels, labels, numbers):
        logits = self.model(pixels)
        loss = nn.functional.cross_entropy(logits, labels)
        self.losses.append(loss.item())
        self.numbers += numbers.tolist()
        return {"loss": loss, "logits": logits}


def collate(batch):
    pixels, labels, numbers = zip(*batch)
    return {"pixels": torch.stack(pixels), "labels": torch.tensor(labels), "numbers": torch.tensor(numbers)}


def main():
    args = arguments("trains with the Trainer of transformers").parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = Model()
    with tempfile.TemporaryDirectory() as place:
        Trainer(model=model, train_dataset=NumberedDigits(args.train), data_collator=collate,
                args=TrainingArguments(output_dir=place, per_device_train_batch_size=args.batch, use_cpu=True,
                                       num_train_epochs=args.epochs, dataloader_num_workers=args.workers,
                                       remove_unused_columns=False, save_strategy="no", report_to=[], seed=args.seed,
                                       disable_tqdm=True)).train()
    part = len(model.numbers) // args.epochs
    samples = [model.numbers[epoch * part:(epoch + 1) * part] for epoch in range(args.epochs)]
    write_report(args, rank, world, model.losses, model.model, samples)


if __name__ == "__main__":
    main()
