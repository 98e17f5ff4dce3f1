"""Brings a branch to main: reads both, judges, builds, and puts the version until it has a number of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from committerd.branches.changes import Frame, base_at, changes_between, frame_of
from committerd.branches.grid import footprint_of, require_no_conflict, touching
from committerd.branches.history import Step, find_branch, read_version, steps_after
from committerd.branches.indices import copied_files, index_changes
from committerd.branches.landing import (
    OnMain,
    Promotion,
    build,
    deletion_files_of,
    deletion_files_of_main,
    matched,
    on_main,
    with_settings,
)
from committerd.branches.reference import Branch, base_path_of
from committerd.branches.refusal import PromotionConflict, PromotionRefused
from committerd.committer.direct import commit
from committerd.concurrency import map_each
from committerd.lance.conflicts.footprint import Footprint
from committerd.lance.conflicts.key_filter import KeyUnion, inserted_keys
from committerd.lance.format.kind import Kind
from committerd.lance.format.manifest_file import ManifestFile
from committerd.lance.format.wording import listed
from committerd.lance.operations.permissions import ANYTHING
from committerd.queue.dedupe import Refused
from committerd.table.backoff import Backoff
from committerd.table.case import PrepareOptions, Sources
from committerd.table.fetching import Fetcher, OpenStore, run
from committerd.table.judge import Judged, judge, require_buildable
from committerd.table.landing import land_alone
from committerd.table.prepare import Prepared
from committerd.table.versions import Gap, History, Table
from committerd_common.branches import branch_uri
from committerd_common.index_details import is_system_index
from committerd_common.messages import BasePath, Transaction

_ATTEMPTS = 1000
"""Races that a promotion may lose before it fails."""
_AT_ONCE = 16
_PROGRESS_EVERY = 1024
"""Versions of main between two lines of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """What was brought to main, or would be."""

    branch: Branch
    first: int = 0
    """The first version of the branch that is brought; 0 = none is."""
    last: int = 0
    version: int = 0
    """The version of main that has it; 0 = none has been committed, or was needed."""
    main: int = 0
    """The latest version of main that it was judged on."""
    fast_forward: bool = False
    """Whether main had not moved."""
    steps: Sequence[Step] = ()
    earlier: int = 0
    """The version of the branch up to which earlier promotions had brought it; 0 = there was none."""
    earlier_version: int = 0
    """The version of main that the last of these is."""
    base: int | None = None
    """The id of the branch's folder among the base paths of main; None = main does not have it."""
    needed: int = 0
    """The number of fragments of main with data files in the branch's folder."""
    index_version: int = 0
    """The version of main that brought the indices of the branch; 0 = there was none."""
    indices_brought: Sequence[str] = ()
    """The names of the indices that it brought or removed."""
    indices: Sequence[str] = ()
    """The names of the indices of the branch that main does not get."""


@dataclass(slots=True, kw_only=True)
class Promoting:
    """One run of `committerd promote`."""

    uri: str
    name: str
    open_store: OpenStore
    sources: Sources
    backoff: Backoff
    trusts_rewrites: bool = False
    progress: Callable[[str], None] = field(default=lambda text: None)
    main: Table = field(init=False)
    own: Table = field(init=False)
    branch: Branch = field(init=False)
    _looked_up: int = field(init=False, default=0)
    """Up to which version of main promotions of this branch were looked for."""
    _promotions: dict[int, int] = field(init=False, default_factory=dict)
    """The versions of main that are promotions of this branch, each with the version of the branch that it brought."""
    _judged: int = field(init=False, default=0)
    """Up to which version of main each transaction was compared by the grid."""

    async def _start(self) -> None:
        self.main = Table(self.open_store(self.uri))
        self.own = Table(self.open_store(branch_uri(self.uri, self.name)))
        await self._latest()
        self.branch = await find_branch(self.main.store, self.name)

    async def _latest(self) -> ManifestFile:
        latest = await self.main.latest()
        if latest is None:
            raise PromotionRefused(f"there is no table at {self.uri}", code="no_table")
        require_buildable(latest)
        return latest

    async def _head(self) -> ManifestFile:
        head = await self.own.latest()
        if head is None:
            raise PromotionRefused(f"branch {self.name!r} has no version in {self.own.uri}", code="branch_cleaned_up")
        return await read_version(self.own, self.branch, head.version)

    async def run(self, *, dry: bool = False) -> Promoted:
        """Bring the branch to main. `dry`: only say what would be done. Raises `PromotionRefused`."""
        await self._start()
        plan: _Plan | None = None
        for _ in range(_ATTEMPTS):
            latest = await self._latest()
            # Read after main: whoever has brought more of the branch meanwhile brought versions that are there now.
            head = await self._head()
            found = await self._look_for_promotions(latest.version, head.version)
            if found or plan is None or plan.is_outdated(latest, head):
                plan = await self._plan(latest, head)
                self._judged = 0
            done = plan.done(latest)
            if plan.promotion is None or plan.promotion.changes.is_nothing:
                await self._require_kept(done.earlier_version, latest.version)
                return await self._with_indices(replace(done, needed=needed(latest, done.base)), plan, latest, dry=dry)
            await self._require_no_conflict(plan, latest)
            prepared = await self._prepare(plan, plan.promotion, latest)
            done = replace(done, version=prepared.version, needed=needed(prepared.file, done.base))
            if dry:
                return await self._with_indices(done, plan, prepared.file, dry=True)
            if await land_alone(self.main, prepared, self.backoff):
                self._promotions[prepared.version] = head.version
                self._looked_up = prepared.version
                return await self._with_indices(done, plan, prepared.file, dry=False)
        raise PromotionRefused(
            f"other writers committed {_ATTEMPTS} versions while this command tried to; nothing was committed. Run it "
            "again when main is less busy",
            code="contended",
        )

    async def _with_indices(self, done: Promoted, plan: _Plan, main: ManifestFile, *, dry: bool) -> Promoted:
        """Bring the indices of the branch that hold for main, in a version of their own after the promotion.

        Also where nothing else is new: the command may have been killed between the two versions.
        """
        # A branch that only built indices has the rows with which it began.
        version = done.version or done.earlier_version or self.branch.start
        promotion = main if main.version == version else await self.main.readable(version)
        changes = index_changes(promotion, plan.head, plan.frame) if promotion is not None else None
        brought = list[str]()
        index_version = 0
        if changes is not None:
            files = [await copied_files(self.own.store, self.main.store, one, dry=dry) for one in changes.new]
            if all(files):
                transaction = changes.transaction(self.branch.indices(plan.head.version), version)
                brought = sorted({one.name for one in (*changes.new, *changes.removed)})
                if not dry:
                    outcome = await commit(
                        self.main,
                        transaction,
                        options=PrepareOptions(allowed=ANYTHING),
                        sources=self.sources,
                        open_store=self.open_store,
                        backoff=self.backoff,
                    )
                    index_version = outcome.version
                    brought = brought if index_version else []
        missing = sorted(set(left_out(main, plan.head)) - set(brought))
        return replace(done, index_version=index_version, indices_brought=brought, indices=missing)

    async def _look_for_promotions(self, latest: int, head: int) -> bool:
        """Look for promotions of this branch among new versions of main; returns whether any was found.

        Raises `PromotionRefused` (`history_gap`) if a version since the branch began can't be read.
        """
        uuids = {self.branch.promotion(number): number for number in range(self.branch.start + 1, head + 1)}
        found = False
        numbers = range(max(self._looked_up, self.branch.start) + 1, latest + 1)
        for low in range(0, len(numbers), _AT_ONCE):
            some = numbers[low : low + _AT_ONCE]
            if low and low % _PROGRESS_EVERY == 0:
                self.progress(f"looked into {low} of {len(numbers)} versions of main")
            for number, settled in zip(some, await map_each(some, self.main.settled, at_once=_AT_ONCE), strict=True):
                if settled is None:
                    raise _gap(number)
                for uuid in (settled.uuid, *(member.uuid for member in settled.members)):
                    if uuid in uuids:
                        self._promotions[number] = uuids[uuid]
                        found = True
        self._looked_up = latest
        return found

    async def _plan(self, latest: ManifestFile, head: ManifestFile) -> _Plan:
        start = self.branch.start
        version, after = max(self._promotions.items(), key=lambda one: one[1], default=(start, start))
        base = await self.main.readable(version)
        if base is None:
            raise _gap(version)
        before = await read_version(self.own, self.branch, after)
        first = before if after == start else await read_version(self.own, self.branch, start)
        steps = await steps_after(self.own, self.branch, after, head.version, progress=self._progress)
        folder = base_path_of(self.uri, self.name)
        done = Promoted(branch=self.branch, base=base_at(latest.outline.base_paths, folder))
        if after > start:
            done = replace(done, earlier=after, earlier_version=version)
        bases = list(latest.outline.base_paths)
        frame, added = frame_of(bases, head.outline.base_paths, table=self.uri, folder=folder, name=self.name)
        if not steps:
            return _Plan(shown=done, promotion=None, head=head, frame=frame, bases=bases)
        promotion = Promotion(
            uuid=self.branch.promotion(head.version),
            properties={"branch": self.name, "branch.versions": f"{after + 1}-{head.version}"},
            start=start,
            base=base,
            before=before,
            after=head,
            changes=changes_between(before, head),
            frame=frame,
            added_base=added,
            first_row_id=first.outline.next_row_id,
            inserted_rows=inserted(steps),
        )
        known = frozenset(first.fragments.facts.ids)
        touched = list[tuple[Step, Footprint]]()
        for step in steps:
            below = await read_version(self.own, self.branch, step.version - 1)
            touched.append((step, footprint_of(step, below, known, frame.bases)))
        matches = matched(promotion)
        there = on_main(
            promotion,
            matches,
            of_branch=await Fetcher(self.own, self.open_store)(deletion_files_of(promotion)),
            of_main=await Fetcher(self.main, self.open_store)(deletion_files_of_main(promotion, matches)),
            sources=self.sources,
        )
        shown = replace(done, first=after + 1, last=head.version, steps=steps, base=frame.own)
        return _Plan(
            shown=shown, promotion=promotion, touched=touched, there=there, head=head, frame=frame, bases=bases
        )

    async def _require_no_conflict(self, plan: _Plan, latest: ManifestFile) -> None:
        low = max(self._judged, self.branch.start)
        while low < latest.version:
            some = await self.main.some_after(low, latest.version)
            if isinstance(some, Gap):
                raise _gap(some.version)
            theirs = [one for one in some if one.version not in self._promotions]
            for step, ours in plan.touched:
                require_no_conflict(step, ours, theirs)
            low = some[-1].version
        self._judged = latest.version

    async def _require_kept(self, promotion: int, latest: int) -> None:
        """Check that main was not replaced after its last promotion of this branch. Raises `PromotionConflict`."""
        low = promotion or latest
        while low < latest:
            some = await self.main.some_after(low, latest)
            if isinstance(some, Gap):
                raise _gap(some.version)
            for one in some:
                kind = one.footprint.kind if isinstance(one.footprint, Footprint) else None
                if kind in (Kind.RESTORE, Kind.OVERWRITE):
                    raise PromotionConflict(
                        f"the branch was promoted as version {promotion} of main, and {kind} has replaced main in "
                        f"version {one.version}. Do the work of the branch again on the latest version of main, or on "
                        "a new branch of it",
                        version=one.version,
                        operation=str(kind),
                    )
            low = some[-1].version

    async def _prepare(self, plan: _Plan, promotion: Promotion, latest: ManifestFile) -> Prepared:
        there = plan.there
        assert there is not None
        start = with_settings(latest, promotion)
        judged: Judged | Refused = Judged(transaction=Transaction())
        fetcher = Fetcher(self.main, self.open_store)
        if there.surrogate is not None:
            steps = judge(
                History(self.main, unwritten=there.unwritten),
                start,
                there.surrogate,
                facts=there.facts(),
                options=PrepareOptions(allowed=ANYTHING, trusts_rewrites=self.trusts_rewrites),
                sources=self.sources,
            )
            judged = await run(steps, fetcher)
        if isinstance(judged, Refused):
            raise await self._refused(judged, plan)
        assert self.main.scheme is not None
        return await run(
            build(latest, judged, promotion, there, scheme=self.main.scheme, sources=self.sources), fetcher
        )

    async def _refused(self, refused: Refused, plan: _Plan) -> PromotionRefused:
        if not refused.conflicting_version:
            return PromotionRefused(f"{refused.message}. Nothing was committed", code=refused.reason)
        theirs = await self.main.committed(refused.conflicting_version)
        touched = theirs.footprint if theirs is not None else None
        steps = touching(plan.touched, touched) if isinstance(touched, Footprint) else []
        # Several may have changed the same fragment; which of them changed the row is not known here.
        named = listed([f"version {step.version} ({step.kind})" for step in steps])
        who = f"the branch, in {named}," if steps else "the branch"
        only = steps[0] if len(steps) == 1 else None
        return PromotionConflict(
            f"{who} conflicts with version {refused.conflicting_version} of main ({refused.conflicting_operation}), by "
            f"rule {refused.rule}: {refused.message}. Nothing was committed",
            branch_version=only.version if only is not None else 0,
            branch_operation=str(only.kind) if only is not None else "",
            version=refused.conflicting_version,
            operation=refused.conflicting_operation,
            rule=refused.rule,
        )

    def _progress(self, done: int, of: int) -> None:
        if of > _AT_ONCE:
            self.progress(f"read {done} of {of} versions of the branch")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    shown: Promoted
    promotion: Promotion | None
    """None = the branch has no transaction that main lacks."""
    head: ManifestFile
    frame: Frame
    bases: Sequence[BasePath]
    """Main's base paths when the plan was made."""
    touched: Sequence[tuple[Step, Footprint]] = ()
    there: OnMain | None = None

    def is_outdated(self, latest: ManifestFile, head: ManifestFile) -> bool:
        """Whether the branch has moved, or main's base paths have."""
        return head.version != self.head.version or list(latest.outline.base_paths) != list(self.bases)

    def done(self, latest: ManifestFile) -> Promoted:
        base = self.promotion.base.version if self.promotion is not None else 0
        return replace(self.shown, main=latest.version, fast_forward=latest.version == base)


def needed(main: ManifestFile, base: int | None) -> int:
    """The number of fragments of a version of main with data files in this base path."""
    if base is None:
        return 0
    return sum(any(file.HasField("base_id") and file.base_id == base for file in one.files) for one in main.fragments)


def left_out(main: ManifestFile, head: ManifestFile) -> list[str]:
    """The names of the indices of the branch's latest version that a version of main does not have."""
    has = {index.uuid.uuid for index in main.indices}
    return sorted({one.name for one in head.indices if one.uuid.uuid not in has and not is_system_index(one)})


def inserted(steps: Sequence[Step]) -> Transaction.KeyExistenceFilter | None:
    """The keys that these transactions inserted together; None if one of them does not say, or they differ in kind."""
    union: KeyUnion | None = None
    for step in steps:
        if step.kind is not Kind.UPDATE:
            continue
        keys = inserted_keys(step.transaction)
        if keys is None:
            continue
        union = union or KeyUnion(keys)
        if not union.takes(keys):
            return None
        union.add(keys)
    return union.message() if union is not None else None


def _gap(version: int) -> PromotionRefused:
    return PromotionRefused(
        f"version {version} of main is gone or damaged, and it may conflict with the branch, or be its last "
        "promotion: was main cleaned up since the branch began? Nothing was committed. Copy the rows of the branch to "
        "main with any writer",
        code="history_gap",
    )
