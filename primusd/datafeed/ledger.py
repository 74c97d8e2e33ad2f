"""The ledger of a stream: every position done, leased, waiting or dead. A machine (job/machine.py).

What a reader (one attempt with one incarnation) and the ledger agree on, beside protocol §8:

- **Positions** are bytes for plain text (`Unit.options["format"]` is `text` and `compression` is
  absent or ""), where any byte may be a cut: a task owns the lines that *start* in [lo, hi). For
  everything else (Parquet, compressed text) they are rows, and the size of a unit is not known
  before somebody opened it: its lease is then [lo, `OPEN_END`) and means "to the end of the unit".
- **`mapped`** is sent by whoever opened a unit whose size it was not told (`Lease.hi` is
  `OPEN_END`), once, and again until `Orders.report` covers it, in the same report as, or earlier
  than, a `Held.hi` other than `OPEN_END` for that unit. `rows` ≥ 0 is the size, else the last of
  `cuts` is. The ledger narrows every lease of the unit to the size at once. Where the number of
  rows is known only at the end (a compressed text), it is sent at the end. A second map of a unit
  changes nothing. Without a map a lease that ends at `OPEN_END` is never done.
- **`Held`** must repeat epoch, unit, lo and token of the lease. `hi` is what the reader goes by:
  min of its own and the lease's. Lower than the lease's: trimmed, with or without having been
  asked (its own consent is enough: a reader whose trainer stands still may cut off what it has
  not delivered). `hi` never rises again, and is never below what was delivered. `position` is what
  the trainer took. `position == hi` is done: keep it in `held` until the leases lack its token.
- **`Lease.trim`** ≥ 0: please end at max(trim, delivered so far), and say so with a lower `hi`;
  if all up to `hi` was delivered, say nothing, it will be done soon. `trim` lies on a cut where a
  useful one is known, else anywhere: any row of a Parquet file (its row group is decoded twice).
- **`want`** counts leases that could be started now beyond those in `leases` and `held`; leases
  that were granted and are not in `held` yet are subtracted here. At most 64 are given per report.
  A reader of small files asks for as many as keep it busy for two beats.
- **`returned`**: each is counted at its `position` and waits again from there; it need not be in
  `held` as well. On the trainer's end return all, and put the same into `Exit.positions`.
- **`bad`**: a range [lo, hi) of a held lease that cannot be read; kinds `data`, `changed`,
  `vanished`: the reader goes on behind it, as if the range had been taken (`hi` may be the lease's:
  the rest cannot be read). Whether that fails the stream or goes on the list is decided here
  (`onBad`). Kind `transient`: the reader gave up; it names [position, hi) and stops there: the
  lease goes back to waiting; the second time the range counts as `data`.
- **Epochs**: leases of the next epoch may come while some of this one are still held by others;
  a reader reads its leases in order of (epoch, unit, lo), a batch never crosses an epoch, and a
  range that comes back from a lost reader may be of the older epoch.
- **`FeedOrders`**: `serve`; `wait` (nothing for this reader now: all it may do is wait); `paused`
  (hand out nothing more, keep the leases); `end` only when the stream is Done. `Lease.body` is
  there until the lease's position has moved. `window_rows` 0: no limit known yet.
"""
