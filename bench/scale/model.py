#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model of one host. From the code, it counts the work of each of n ranks in a call on B bytes.
It predicts the time of the call on a host with given figures. Run as a program, it prints the
tables of docs/internals/scaling.md, which explains it."""

import dataclasses

KB, MB = 1 << 10, 1 << 20
LINE = 64  # Bytes of a cache line.

# comm/shm/group_segment.h: GroupSegment::chunk_bytes, sizeof(RankBlock); staging.cpp: small_bytes.
CHUNK, LANE, SMALL = 128 * KB, 704, 4 * KB
# in_place.cpp: most_readers, least_part_read, least_broadcast_read, most_read_together,
# most_read_by_one, least_reduced_read.
READERS, PART_READ, BROADCAST_READ, READ_TOGETHER = 4, 32 * KB, 64 * KB, 512 * KB
READ_BY_ONE, REDUCED_READ = 1024 * KB, 2048 * KB

# --- Counts of a call ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Counts:
    """For the busiest rank, and for all ranks together."""
    syncs: float = 0  # How often all ranks wait for each other.
    reads: float = 0  # Bytes.
    writes: float = 0
    shared: float = 0  # Bytes of cache lines that another core wrote last, or has copies of.
    host_reads: float = 0
    host_writes: float = 0

    def __add__(self, other):
        return Counts(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    @property
    def lines(self):
        return self.shared / LINE


# By operation and path: the functions in comm/shm that do it, and the fields of Counts.
#   B  bytes of a rank's larger buffer        c  chunks
#   P  a rank's part, B / n                   S  the busiest rank's slices, about B / n
FORMULAS = {
    ("barrier", "any"): ("Barrier::enter", "1", "0", "0", "0", "0", "0"),
    ("all_reduce", "registered"):
        ("InPlace::reduce_slice", "2", "n*S", "n*S", "2*(n - 1)*S", "n*B", "n*B"),
    ("all_reduce", "small"):
        ("Staging::reduce_at_once", "1", "(n + 1)*B", "2*B", "n*B", "n*(n + 1)*B", "2*n*B"),
    ("all_reduce", "any"):
        ("Staging::put_around_slice, combine_slice, take_slices", "c + 1", "2*(B - S) + n*S",
         "2*B", "2*(B - S) + n*S", "(3*n - 2)*B", "2*n*B"),
    ("all_reduce", "read"):
        ("InPlace::all_reduce_outside", "3", "2*(n - 1)*S + B", "(n - 1)*S + B",
         "(n - 1)*S + B - S", "(3*n - 2)*B", "(2*n - 1)*B"),
    ("broadcast", "registered"):
        ("InPlace::run", "2", "B", "B", "B", "(n - 1)*B", "(n - 1)*B"),
    ("broadcast", "any"):
        ("Staging::put, take_whole", "c", "B", "B", "B + B/c", "n*B", "n*B"),
    ("broadcast", "read"):
        ("InPlace::fetch", "2", "B", "B", "B", "(n - 1)*B", "(n - 1)*B"),
    ("all_gather", "registered"):
        ("InPlace::read, write", "2", "B", "B", "B - P", "n*B", "n*B"),
    ("all_gather", "any"):
        ("Staging::put, take_parts", "c", "B + P", "B + P", "B", "n*(B + P)", "n*(B + P)"),
    ("all_gather", "read"):
        ("InPlace::read, fetch", "2", "B", "B", "B - P", "n*B", "n*B"),
    ("reduce_scatter", "registered"):
        ("InPlace::reduce_part", "2", "B", "P", "B - P", "n*B", "B"),
    ("reduce_scatter", "any"):
        ("Staging::put, reduce_part", "c", "2*B - P", "B", "2*(B - P)", "n*(2*B - P)", "n*B"),
}


def padded(size):
    return -(-size // LINE) * LINE


def slice_of(size, n):
    """comm/shm/parts.h: slice_of(); whole cache lines."""
    return min(size, padded(-(-size // (4 * n)) * 4))


def is_read(operation, n, size, crowded):
    """reads_outside() in in_place.cpp, if the kernel permits it."""
    if n == 1 or n > READERS:
        return False
    if operation == "broadcast":
        most = READ_BY_ONE if n == 2 else READ_TOGETHER
        return not crowded and BROADCAST_READ <= size <= most
    if operation == "all_reduce":
        return not crowded and n == 2 and size >= REDUCED_READ
    return operation == "all_gather" and size >= n * PART_READ and (n == 2 or size <= READ_TOGETHER)


def path_of(operation, n, size, registered, crowded, reads):
    """ShmBackend::enter and run; Staging::is_small."""
    if registered and (size > SMALL or operation == "all_reduce"):
        return "registered"
    if operation == "all_reduce" and size <= SMALL:
        return "small"
    return "read" if reads and is_read(operation, n, size, crowded) else "any"


def counts_of(operation, n, size, registered=False, path=None, crowded=False, reads=True):
    """`size` is in bytes. `path` forces one of FORMULAS. `crowded`: ranks outnumber cores. `reads`:
    ranks can read each other's memory."""
    path = path or path_of(operation, n, size, registered, crowded, reads)
    part = size / n
    most = CHUNK  # Maximum part in a chunk: staging.cpp, most_part_bytes().
    if operation == "reduce_scatter":
        most = CHUNK // n // LINE * LINE
    chunks = max(1, -(-(part if operation in ("all_gather", "reduce_scatter") else size) // most))
    slice_bytes = slice_of(size, n)
    if operation == "all_reduce" and path == "any":  # Every chunk is sliced in the same way.
        of_chunk = slice_of(min(CHUNK, padded(size)), n)
        slice_bytes = size // CHUNK * of_chunk + min(size % CHUNK, of_chunk)
    names = {"n": n, "B": size, "P": part, "S": slice_bytes, "c": chunks}
    return Counts(*(eval(formula, names) for formula in FORMULAS[operation, path][1:]))


# --- Counts of a training step ------------------------------------------------------------------

REPORT = 96  # sizeof(PassReport): parallel/gradients/pass_report.h

# examples/models/cnn.h for 3x32x32 images: bytes of small gradients together, of each large one,
# and the number of parameters.
CNN = (4 * (896 + 18496 + 512 + 5130), [4 * 4096 * 512], 8)
CNN_BYTES = CNN[0] + sum(CNN[1])


def step_of(n, calls, copied):
    """Sums calls, given by operation and size, and what a rank copies beside them. Gradients are in
    registered memory; data that ranks gather from each other are not."""
    counts = [counts_of(operation, n, size, operation != "all_gather") for operation, size in calls]
    reads, writes = copied
    return sum(counts, Counts(reads=reads, writes=writes, host_reads=n * reads,
                              host_writes=n * writes)), len(calls)


def replicas(n, small, large, parameters):
    """DistributedDataParallel: PassReports; BucketedGradients::take, which copies small gradients
    and checks whether all are finite; BucketedGradients::reduce_all. Returns counts, calls."""
    sums = [("all_reduce", size) for size in [small, *large]]
    return step_of(n, [("all_gather", n * (REPORT + parameters)), *sums],
                   (2 * small + sum(large), 2 * small))


def shared_parameters(n, small, large, parameters):
    """With share_parameters: PassReports; GradientSlices::used, collect and average;
    SharedOptimizerBase::after_step. Without the optimizer's own bytes. Returns counts, calls."""
    sums = [("reduce_scatter", size) for size in [small, *large]]
    return step_of(n, [("all_gather", n * (REPORT + parameters)), ("all_gather", n * parameters),
                       *sums, ("barrier", 0)], (small + sum(large), small))


# --- init_process_group() under `lockstep run` --------------------------------------------------

def staging_bytes(n):
    """GroupSegment::staging_bytes"""
    return CHUNK * min(max(128 // n, 4), 16)


def segment_bytes(n):
    """GroupSegment::head_bytes, without what is the same for all n: reserved and zeroed by rank 0,
    in ShmBackend::make_segment."""
    return n * LANE


def packets(n):
    """To and from rank 0 (job/fd_broker.cpp). All others ask it for the segment, and get an answer.
    The job control block is not among them: each rank got it when it was started."""
    return 2 * (n - 1)


# --- Time ---------------------------------------------------------------------------------------

@dataclasses.dataclass
class Host:
    """Figures of a host in ns. Functions of n get the number of ranks."""
    call: float  # A call of a group of one rank: lock, number, record.
    line: object  # line(n): a flag, from the core that sets it to a waiting one.
    flags: object  # flags(n): each further flag, of ranks that came before.
    stream: object  # stream(n): a cache line from another core, many in a row.
    copy: object  # copy(n, size): bytes per ns that a rank reads and writes while all n copy.
    page: float  # Reserving and zeroing 4 KiB of shared memory.
    packet: float  # A packet between two processes.
    start: float  # init_process_group() of one rank.

    def sync(self, n):
        """Barrier::await_all. All ranks arrive together: the last flag takes a line's time, while
        the processor fetches the others."""
        return 0 if n == 1 else self.line(n) + (n - 2) * self.flags(n)

    def terms(self, counts, n, size, calls=1):
        """The time of a call of n > 1 ranks by its parts. Data arrive as fast as lines from other
        cores or as a copy, whichever is slower; the first line takes its whole time."""
        terms = {"calls": calls * self.call, "rendezvous": counts.syncs * self.sync(n)}
        if counts.reads == 0:
            return terms
        lines = counts.lines * self.stream(n)
        copies = (counts.reads + counts.writes) / self.copy(n, size)
        return terms | {"lines" if lines > copies else "copies": self.line(n) + max(lines, copies)}

    def time(self, counts, n, size, calls=1):
        return sum(self.terms(counts, n, size, calls).values())

    def init(self, n):
        """After the last rank has started: each rank's own work, packets and rank 0's segment.
        Excludes the first rendezvous, which differs: a counter and a wake-up of all
        (Barrier::crowded_)."""
        return self.start + packets(n) * self.packet + segment_bytes(n) / 4096 * self.page


# --- The tables of the page ---------------------------------------------------------------------

RANKS = (8, 64, 192)
CORES_OF_L3, CORES_OF_SOCKET, L2, L3 = 8, 96, 1 * MB, 32 * MB


def assumed_host(gb_of_host=300):
    """Two sockets of 96 cores, eight to an L3 cache. Every figure is an assumption."""
    def by_reach(near, far, remote):
        """Uses the farthest rank."""
        return lambda n: near if n <= CORES_OF_L3 else far if n <= CORES_OF_SOCKET else remote

    def copy(n, size):
        if 2 * size <= L2:
            return 50
        return 20 if 2 * size * CORES_OF_L3 <= L3 else min(20, gb_of_host / n)

    return Host(call=90, line=by_reach(25, 100, 200), flags=by_reach(4, 12, 18),
                stream=by_reach(2, 8, 10), copy=copy, page=300, packet=10e3, start=500e3)


CASES = [("barrier", 0, False),
         *(("all_reduce", size, False) for size in (KB, 4 * KB, 64 * KB, MB)),
         *(("all_reduce", size, True) for size in (KB, 64 * KB, MB, 64 * MB)),
         *((operation, MB, registered)
           for operation in ("broadcast", "all_gather", "reduce_scatter")
           for registered in (True, False))]


def text_of(size):
    return f"{size // MB} MB" if size >= MB else f"{size // KB} KB" if size >= KB else str(size)


def name_of(operation, size, registered):
    memory = "registered" if registered else "any"
    return f"{operation}, {text_of(size)}, {memory}" if size else operation


def bytes_text(size):
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f}"


def time_text(ns):
    return f"{ns / 1e6:.3g} ms" if ns >= 1e6 else f"{ns / 1e3:.3g} us"


def markdown(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def formula_table():
    rows = ([operation, path, f"`{code}`", *(text.replace("*", " ") for text in formulas)]
            for (operation, path), (code, *formulas) in FORMULAS.items())
    return markdown(["call", "memory", "code", "rendezvous", "reads", "writes", "in shared lines",
                     "reads, host", "writes, host"], rows)


def steps_of(n):
    yield "CNN, replicas", *replicas(n, *CNN)
    yield "CNN, shared parameters", *shared_parameters(n, *CNN)


def all_counts(n):
    """Returns counts, bytes and calls of each case of the tables, by name."""
    cases = {name_of(*case): (counts_of(case[0], n, *case[1:]), case[1], 1) for case in CASES}
    return cases | {name: (counts, CNN_BYTES, calls) for name, counts, calls in steps_of(n)}


def by_ranks(cell):
    """Returns a table with cell(n, counts, size, calls) for each case and number of ranks."""
    columns = {n: all_counts(n) for n in RANKS}
    rows = ([name, *(cell(n, *columns[n][name]) for n in RANKS)] for name in columns[RANKS[0]])
    return markdown(["", *(f"{n} ranks" for n in RANKS)], rows)


def count_table():
    def cell(_n, counts, _size, _calls):
        return (f"{counts.syncs:.0f}; {counts.lines:,.0f}; "
                f"{bytes_text(counts.reads + counts.writes)}; "
                f"{bytes_text(counts.host_reads + counts.host_writes)}")
    return by_ranks(cell)


def time_table(host):
    def cell(n, counts, size, calls):
        terms = host.terms(counts, n, size, calls)
        name = max(terms, key=terms.get)
        whole = sum(terms.values())
        return f"{time_text(whole)}; {name} {terms[name] / whole:.0%}"
    return by_ranks(cell)


def init_table(host):
    rows = [["packets", *(f"{packets(n):,}" for n in RANKS)],
            ["segment", *(bytes_text(segment_bytes(n)) for n in RANKS)],
            ["predicted", *(time_text(host.init(n)) for n in RANKS)]]
    return markdown(["", *(f"{n} ranks" for n in RANKS)], rows)


# --- What we would do ---------------------------------------------------------------------------

def two_level_sync(host, n):
    """Flags within an L3 cache, then the first ranks of all caches, then back."""
    caches = n // CORES_OF_L3
    if caches < 2:
        return host.sync(n)
    across = host.line(n) + (caches - 2) * host.flags(n)
    return host.sync(CORES_OF_L3) + across + host.line(CORES_OF_L3)


def remedy_table(host):
    one_node = assumed_host(gb_of_host=150)

    def all_reduce(host, n, size, **how):
        return host.time(counts_of("all_reduce", n, size, **how), n, size)

    def row(name, before, after):
        return [name, *(f"{time_text(before(n))}; {time_text(after(n))}" for n in RANKS)]

    rows = [
        row("barrier: flat; two levels", lambda n: host.call + host.sync(n),
            lambda n: host.call + two_level_sync(host, n)),
        *(row(f"all_reduce, {text_of(size)}, any: at once; in slices",
              lambda n, size=size: all_reduce(host, n, size),
              lambda n, size=size: all_reduce(host, n, size, path="any"))
          for size in (KB, 4 * KB)),
        row("all_reduce, 64 MB, registered: pages on one node; on two",
            lambda n: all_reduce(one_node, n, 64 * MB, registered=True),
            lambda n: all_reduce(host, n, 64 * MB, registered=True)),
        row("CNN, gradients: replicas; shared parameters",
            lambda n: host.time(*_step(replicas, n)),
            lambda n: host.time(*_step(shared_parameters, n)))]
    return markdown(["now; then", *(f"{n} ranks" for n in RANKS)], rows)


def _step(kind, n):
    counts, calls = kind(n, *CNN)
    return counts, n, CNN_BYTES, calls


def tables():
    host = assumed_host()
    for table in (formula_table(), count_table(), time_table(host), init_table(host),
                  remedy_table(host)):
        yield from table
        yield ""


if __name__ == "__main__":
    print("\n".join(tables()))
