#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer with Ray Train: it starts its workers itself, and they learn their rank late."""

import shutil
import tempfile

import torch
from digits_train import NumberedDigits, arguments, build_model, write_report
from torch import nn
from torch.utils.data import DataLoader


def loop(args):
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = build_model()
    network = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    loader = ray.train.torch.prepare_data_loader(
        DataLoader(NumberedDigits(args.train), batch_size=args.batch, shuffle=True, num_workers=args.workers))
    losses, samples = [], []
    for epoch in range(args.epochs):
        if context.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        samples.append([])
        for pixels, labels, numbers in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(pixels), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            samples[-1] += numbers.tolist()
    write_report(args, context.get_world_rank(), context.get_world_size(), losses, model, samples)


def main():
    parser = arguments("trains with Ray Train")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--storage", required=True, help="where Ray Train writes")
    args = parser.parse_args()
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    place = tempfile.mkdtemp(prefix="ray.", dir="/tmp")  # for sockets: their paths have room for 107 bytes
    ray.init(num_cpus=args.world + 1, include_dashboard=False, log_to_driver=False, _temp_dir=place)
    try:
        TorchTrainer(loop, train_loop_config=args, torch_config=TorchConfig(backend="gloo"),
                     scaling_config=ScalingConfig(num_workers=args.world),
                     run_config=RunConfig(storage_path=args.storage)).fit()
    finally:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
