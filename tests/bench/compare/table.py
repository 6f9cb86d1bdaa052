# SPDX-License-Identifier: Apache-2.0
"""The rows of the comparison, the bars, and the markdown that shows them."""
import statistics

from measure import median
from stores import ROOM

ROWS = {
    "A": ["ext4:c1", "ext4:c4", "ext4:torch", "erofs:c1", "squashfs:c1", "shards:direct", "ddpfs-full:c1",
          "ddpfs-full:torch", "ddpfs-full-resident:c1", "wds:lib", "mds:lib", "litdata:lib", "hf:lib"],
    "B": ["ext4:c1", "ext4:c4", "ext4:torch", "erofs:c1", "squashfs:c1", "shards:direct",
          "ddpfs-full:c1", "ddpfs-chunk:c1", "ddpfs-bare-full:c1", "ddpfs-bare-chunk:c1",
          "ddpfs-full:torch", "ddpfs-chunk:torch", "ddpfs-chunk-resident:c1", "ddpfs-chunk-watched:c1",
          "wds:lib", "mds:lib", "litdata:lib", "hf:lib"],
}


class Check:
    """One bar: a measured value and what it must be.  Value None: not measured here; bar None: shown beside the others."""

    def __init__(self, what, value, op, bar, note=""):
        self.what, self.value, self.op, self.bar, self.note = what, value, op, bar, note

    @property
    def verdict(self):
        if self.value is None:
            return "not measured"
        if self.bar is None:
            return ""
        return "met" if (self.value >= self.bar if self.op == ">=" else self.value <= self.bar) else "NOT met"

    @property
    def limit(self):
        return "no bar" if self.bar is None else f"{self.op} {self.bar:g}"

    def as_dict(self):
        return {**self.__dict__, "verdict": self.verdict}


def gbps(p):
    return p["bytes"] / p["sec"] / 1e9


def cpu_per_gb(p):
    return p["cpu"] / p["bytes"] * 1e9


def device_per_byte(p):
    return p["dev_bytes"] / (p["bytes"] + p.get("ahead_bytes", 0))


class Results:
    def __init__(self, rows):
        self.rows = {r["row"]: r for r in rows}

    def value(self, row, which, f):
        reps = [r for r in self.rows.get(row, {}).get("reps", []) if which in r]
        return median(reps, which, f)[0] if reps else None

    def ratio(self, f, ours, theirs, which="cold"):
        a, b = self.value(ours, which, f), self.value(theirs, which, f)
        return a / b if a and b else None


# what, ours' reader, theirs, bar for A, bar for B (None: no bar)
SPEED = [
    ("sequential O_DIRECT of the same shards", "c1", "shards:direct", 0.90, None),
    ("loose ext4, 1 thread", "c1", "ext4:c1", 1.9, 5),
    ("loose ext4, 4 threads", "c1", "ext4:c4", 1.0, 2.5),
    ("EROFS", "c1", "erofs:c1", 2, 6),
    ("squashfs", "c1", "squashfs:c1", 8, 50),
    ("loose ext4, both by PyTorch", "torch", "ext4:torch", 1.8, 3.5),
    ("webdataset, ours by PyTorch", "torch", "wds:lib", 0.95, 2),
    ("mosaicml-streaming, ours by PyTorch", "torch", "mds:lib", 1.8, 3.5),
    ("litdata, ours by PyTorch", "torch", "litdata:lib", 1.5, 0.5),
    ("HF Arrow, ours by PyTorch", "torch", "hf:lib", 1.8, 2),
]


def checks(kind, rows):
    r, out = Results(rows), []
    a = kind == "A"
    for ours, what, bar in ([("ddpfs-full-resident:c1", "all resident", 0.95)] if a else
                            [("ddpfs-chunk-resident:c1", "all resident", 0.80),
                             ("ddpfs-chunk-watched:c1", "not all resident, watched", 0.60)]):
        out.append(Check(f"warm, {what}, 1 thread / loose ext4 warm", r.ratio(gbps, ours, "ext4:c1", "warm"), ">=", bar))
    for order in ("full",) if a else ("full", "chunk"):
        ours = f"ddpfs-{order}"
        for what, how, theirs, bar_a, bar_b in SPEED:
            bar = bar_a if a else bar_b
            if bar is not None:
                out.append(Check(f"order={order}: cold / {what}", r.ratio(gbps, f"{ours}:{how}", theirs), ">=", bar))
        out.append(Check(f"order={order}: CPU s per GB / loose ext4 cold, 1 thread",
                         r.ratio(cpu_per_gb, f"{ours}:c1", "ext4:c1"), "<=", 1.3 if a else 0.5))
        for container in ("",) if a else ("", "-bare"):
            out.append(Check(f"order={order}{', container=bare' if container else ''}: device bytes / delivered",
                             r.value(f"ddpfs{container}-{order}:c1", "cold", device_per_byte), "<=",
                             1.05 if a or container else 1.15))
    return out


def _spread(reps, which, f, form):
    return "{} ({}-{})".format(*(form.format(x) for x in median(reps, which, f)))


HEAD = ("row", "pass", "files/s (min-max)", "GB/s", "CPU s/GB: all / daemon / machine", "device bytes/delivered",
        "READs a file", "first s", "p99", "pack s, size")


def _line(row, which, reps):
    def mid(f):
        return statistics.median(f(r[which]) for r in reps)
    p = reps[0][which]
    cells = [row["row"], which, _spread(reps, which, lambda x: x["files"] / x["sec"], "{:.0f}"),
             f"{mid(gbps):.3f}",
             " / ".join(f"{mid(lambda x, k=k: x[k] / x['bytes'] * 1e9):.2f}" for k in ("cpu", "cpu_daemon", "cpu_system")),
             f"{mid(device_per_byte):.3f}",
             f"{mid(lambda x: x['fuse_read'] / x['files']):.4f}" if "fuse_read" in p else "-",
             f"{mid(lambda x: x['first_s']):.3f}",
             f"{mid(lambda x: x['p99_us']):.0f} us" if "p99_us" in p else f"{mid(lambda x: x['p99_batch_ms']):.1f} ms/batch",
             f"{row['pack']['pack_s']:.1f}, {row['pack']['size'] / 1e6:.0f} MB" if row.get("pack") else "-"]
    return "| " + " | ".join(cells) + " |"


def rows_markdown(rows):
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for row in rows:
        for why in ("skipped", "failed"):
            if why in row:
                lines.append(f"| {row['row']} | {why} | {row[why][:200].replace('|', '/')} |" + " |" * (len(HEAD) - 3))
        for which in ("cold", "warm"):
            reps = [r for r in row.get("reps", []) if which in r]
            if reps and not (which == "cold" and any(word in row["row"] for word in ROOM)):
                lines.append(_line(row, which, reps))
    return "\n".join(lines)


def checks_markdown(found):
    lines = ["| measured | value | bar | |", "|---|---|---|---|"]
    for c in found:
        value = "-" if c.value is None else f"{c.value:.4g}"
        lines.append(f"| {c.what} | {value}{' (' + c.note + ')' if c.note else ''} | {c.limit} | {c.verdict} |")
    return "\n".join(lines)
