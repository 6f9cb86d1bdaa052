# SPDX-License-Identifier: Apache-2.0
"""PyTorch: Stage as an IterableDataset, and follow(loader), which announces what a DataLoader will open."""

from collections.abc import Iterator

from torch.utils.data import DataLoader, IterableDataset, dataloader, get_worker_info

from ddpfs import sampler_copy
from ddpfs.stage import Stage


class StageDataset(IterableDataset):
    """A stage as a data set.  Takes the arguments of Stage, and transform: a function of a Batch.  Without it an
    item is a list of uint8 tensors: views of the arena or, with backend="cuda", of GPU memory.  The library reads
    with its own threads, so use num_workers=0."""

    def __init__(self, dataset, batch=1, *, transform=None, **options):
        self.stage = Stage(dataset, batch, **options)
        self.transform = transform

    def __iter__(self):
        worker = get_worker_info()
        if worker is not None:
            raise RuntimeError("a StageDataset reads with threads of its own: use DataLoader(num_workers=0)")
        return (self._made(batch) for batch in self.stage)

    def _made(self, batch):
        if self.transform is not None:
            return self.transform(batch)
        return [batch.tensor(i) for i in range(len(batch))]

    def __len__(self):
        """The number of batches of a whole epoch, also after a resume in the middle of one: loaders count against
        it."""
        return self.stage.batches(self.stage.position[0] + 1)

    def set_epoch(self, epoch):
        self.stage.set_epoch(epoch)

    def state_dict(self):
        return self.stage.state_dict()

    def load_state_dict(self, state):
        self.stage.load_state_dict(state)


def follow(loader, paths=None):
    """Announces to the mount which files a DataLoader will open, so that they are read ahead.  Returns the loader:

        loader = ddpfs.torch.follow(DataLoader(dataset, batch_sampler=my_sampler, num_workers=4))

    Whatever the sampler is, its draws, the random states and the workers stay the same, bit for bit.  If the files lie
    on no ddpfs mount, a warning says so once, and nothing else happens.  Give it the loader that you iterate: after Accelerate's prepare().

    paths   map-style dataset: a function from an index to the path, or to the list of the paths, that the dataset
            opens.  None: some items are tried, and a list of the dataset that names their files is looked for;
            without a list, the dataset is asked for each item, up to the open of its file.
            IterableDataset: the paths in the order in which they are opened, as a list, or as a function without
            arguments (a generator function, too) that returns those of one epoch.  It is called at the begin of each
            epoch, in this process, and the random states are put back afterwards.

    Each epoch forks the process once (sampler_copy.py).  A sampler whose draws depend on the training is found out by
    comparison and left alone.  Under `ddpfs exec -o view=all` all loaders are followed without it."""
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader is a {type(loader).__name__}: give the torch.utils.data.DataLoader within it; without "
                        "one, announce what the sampler draws with ddpfs.Mount(MNT).follow(...)")
    if paths is None and isinstance(loader.dataset, IterableDataset):
        raise ValueError("an IterableDataset has no indices: give paths=, a function that returns an epoch's paths")
    if paths is not None and not callable(paths) and not isinstance(loader.dataset, IterableDataset):
        raise TypeError("paths is no function: give one that takes an index and returns the path")
    if isinstance(paths, Iterator):
        raise TypeError(f"paths is a {type(paths).__name__}, which has nothing left in the second epoch: give the function "
                        "that makes it, or a list")
    sampler_copy.watch(dataloader, loader, paths)
    return loader
