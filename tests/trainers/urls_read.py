#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the dataset of helpers/datasets.py write_tables with a library that takes ddpfs:// URLs: LIBRARY DATASET FOLDER.
Prints what the column x holds; ends with an error if it is not 0 to 3999."""

import sys

import ddpfs.fsspec  # noqa: F401  registers the protocol, as an installed package does by itself


def pandas(dataset, work):
    import pandas

    assert pandas.read_csv(f"ddpfs://{dataset}/labels.csv").values.tolist() == [["a", 1], ["b", 2]]
    assert pandas.read_csv("ddpfs://labels.csv", storage_options={"dataset": dataset}).label.tolist() == [1, 2]
    return [x for k in range(4) for x in pandas.read_parquet(f"ddpfs://{dataset}/parts/{k}.parquet").x]


def hugging_face(dataset, work, streaming=False):
    import datasets

    found = datasets.load_dataset("parquet", data_files=f"ddpfs://{dataset}/parts/*.parquet", split="train",
                                  streaming=streaming, cache_dir=f"{work}/cache")
    return [row["x"] for row in found]


def hugging_face_streaming(dataset, work):
    return hugging_face(dataset, work, streaming=True)


def ray_data(dataset, work):
    """Its workers get the file system pickled."""
    import fsspec
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=work)
    rows = ray.data.read_parquet(f"{dataset}/parts", filesystem=fsspec.filesystem("ddpfs")).take_all()
    ray.shutdown()
    return [row["x"] for row in rows]


def lightning(dataset, work):
    """An epoch of a trainer whose loader has two workers, which open the URLs."""
    import fsspec
    import lightning
    import pyarrow.parquet
    import torch

    class Parts(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, k):
            with fsspec.open(f"ddpfs://{dataset}/parts/{k}.parquet") as file:
                return torch.tensor(pyarrow.parquet.read_table(file).column("x").to_pylist())

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.seen = []

        def training_step(self, batch, _index):
            self.seen += batch.flatten().tolist()
            return (self.scale * batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, default_root_dir=work)
    trainer.fit(module, torch.utils.data.DataLoader(Parts(), num_workers=2))
    return module.seen


LIBRARIES = {read.__name__: read for read in (pandas, hugging_face, hugging_face_streaming, ray_data, lightning)}

if __name__ == "__main__":
    library, dataset, work = sys.argv[1:]
    got = sorted(LIBRARIES[library](dataset, work))
    assert got == list(range(4000)), got[:20]
    print(f"{library}: {got[-1]} is the last of {len(got)}")
