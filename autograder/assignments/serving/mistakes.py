"""Known wrong solutions of serving."""

from autograder.black_boxes import black_box, wrong_answers
from autograder.mistakes import bug, changed, equivalent, mistakes
from course_pkg.engine.requests import OutOfBlocks
from course_pkg.serving import (
    BeamEngine,
    ChunkedScheduler,
    Engine,
    EngineCore,
    ModelRunner,
    PreemptingScheduler,
    Scheduler,
    SwappingScheduler,
    SwapSpace,
    choose_beams,
    choose_beams_fault,
)

mistakes(
    Scheduler,
    """
* Static: the batch is fixed: nobody joins before all of it have ended
    self.admit() → self.running or self.admit()
""",
)


@bug(Scheduler, "a shorter sequence overtakes one that waits for more memory")
class Overtakes(Scheduler):
    def admit(self):
        Scheduler.admit(self)
        for seq_id in self.waiting[1:]:
            others = [each for each in self.waiting if each != seq_id]
            self.waiting[:] = [seq_id]
            Scheduler.admit(self)
            self.waiting[:] = others if not self.waiting else [others[0], seq_id, *others[1:]]


mistakes(
    Scheduler,
    """
OnlyPrompts: only the blocks of the prompt are set aside, not those of its continuation
    max(longest, len(tokens)) → len(tokens)
* ForgetsForks: nothing is set aside for the forks that are still to come
    math.ceil(each.longest / S) * (1 + each.forks) → math.ceil(each.longest / S)
    self.places(self.running + members) > → len(self.running + members) >
* NoBlocksForForks: the forks that are still to come have places, but no blocks
    math.ceil(each.longest / S) * (1 + each.forks) → math.ceil(each.longest / S)
NoPlacesForForks: the forks that are still to come have blocks, but no places
    sum(1 + self.sequences[seq_id].forks for seq_id in seq_ids) → len(seq_ids)
NoLimit: more sequences than allowed are admitted
    self.max_num_seqs = config.max_num_seqs → self.max_num_seqs = 64
""",
)

changed(
    Scheduler,
    "CountsEnded",
    "what has ended still counts for what is set aside",
    (
        "        self.free(seq_id)\n",
        "        self.free(seq_id)\n"
        "        blocks = math.ceil(self.sequences[seq_id].longest / self.manager.block_size)\n"
        "        for _ in range(min(blocks, self.manager.allocator.available)):\n"
        "            self.manager.allocator.allocate()\n",
    ),
)

mistakes(
    Scheduler,
    """
FromTheStart: all tokens of a sequence are computed in every step, not only the new ones
    (seq_id, start, start + count) → (seq_id, 0, start + count)
ComputedAtOnce: what is planned counts as computed before it is done
    start + count)) → start + count)); self.sequences[seq_id].num_computed += count
ForgetsCopies: the blocks that must be copied are not part of the plan
    self.plan.copies.extend(self → (self
""",
)

changed(
    Scheduler,
    "AdmitsFirst",
    "sequences are admitted before those that run are extended",
    (
        "            self.extend(seq_id)\n        self.admit()\n",
        "            self.extend(seq_id)\n",
    ),
    (
        "        for seq_id in self.running:\n",
        "        self.admit()\n        for seq_id in self.running:\n",
    ),
)

changed(
    Scheduler,
    "AdmitsThenExtends",
    "newcomers are planned before those that run already",
    (
        "        for seq_id in self.running:\n"
        "            self.extend(seq_id)\n"
        "        self.admit()\n",
        "        before = list(self.running)\n"
        "        self.admit()\n"
        "        for seq_id in before:\n"
        "            self.extend(seq_id)\n",
    ),
)

mistakes(
    Scheduler,
    """
EmptyWork: work of no token is planned for a sequence of which all is computed
    if count: → if True:
OneAtATime: no more than one sequence is admitted in a step
    while self.waiting: → if self.waiting:
""",
)

changed(
    Scheduler,
    "PassesOver",
    "one that has no place is passed over, and those behind it are admitted",
    (
        "        while self.waiting:\n            members = self.members(self.waiting[0])",
        "        for first in list(self.waiting):\n            members = self.members(first)",
    ),
    ("reserved > N:\n                return", "reserved > N:\n                continue"),
)

mistakes(
    Scheduler,
    """
AgainstFree: what all of them need is compared with the free blocks, not with all blocks
    reserved > N → reserved > self.manager.allocator.available
NewAgainstFree: only what the newcomers need is compared with the free blocks
    self.running + members] → members]
    reserved > N → reserved > self.manager.allocator.available
NewAgainstAll: nothing is set aside for those that run: only the newcomers count
    self.running + members] → members]
RoundedDown: the blocks that a sequence needs are rounded down
    math.ceil(each.longest / S) → (each.longest // S)
OneMoreBlock: a sequence that fills its blocks is given one more
    math.ceil(each.longest / S) → (each.longest // S + 1)
RoundedTogether: the slots of all sequences are added up before they are rounded up to blocks
    sum(math.ceil(each.longest / S) * → math.ceil(sum(each.longest *
    for each in together) → for each in together) / S)
OnePlaceLess: one sequence less than allowed may run
    > self.max_num_seqs or → >= self.max_num_seqs or
OneBlockLess: the last block is never set aside
    reserved > N → reserved >= N
TokensForLongest: blocks are set aside for the tokens that a sequence has, not for its longest form
    math.ceil(each.longest / S) → math.ceil(len(each.tokens) / S)
NotTheSequence: blocks are set aside for the forks to come, but not for the sequence itself
    (1 + each.forks) for each → max(1, each.forks) for each
SlotsForBlocks: blocks are compared with the number of slots
    reserved > N → reserved > N * S
PlacesOfNew: more sequences than allowed are admitted
    self.places(self.running + members) > → self.places(members) >
CountForStop: work is given as (seq_id, start, count), not (seq_id, start, stop)
    (seq_id, start, start + count) → (seq_id, start, count)
MembersAlone: the members of a group that waits are admitted one by one
    self.members(self.waiting[0]) → [self.waiting[0]]
""",
)

PLANNED = "            self.plan.work.append((seq_id, start, start + count))\n"
changed(
    Scheduler,
    "NotedFirst",
    "work is planned before its blocks are there, and stays planned when there are none",
    (PLANNED, ""),
    ("        if count:\n", "        if count:\n" + PLANNED),
)

mistakes(
    Scheduler,
    """
CopiesReplaced: the copies of each sequence replace those that are planned for others
    self.plan.copies.extend(self.manager → self.plan.copies[:] = (self.manager
CountsAlone: the forks that are still to come have blocks, but no places
    self.places(self.running + members) → len(self.running + members)
ListedOnce: who is admitted in this step does not count when the next one is to be admitted
    S, N = → held = list(self.running); S, N =
    self.running + members] → held + members]
    self.places(self.running + members) → self.places(held + members)
""",
)

changed(
    Scheduler,
    "BlocksListedOnce",
    "nothing is set aside for those admitted in this step when the next one is to be admitted",
    ("        S, N =", "        held = list(self.running)\n        S, N ="),
    ("self.running + members]", "held + members]"),
)

mistakes(
    Scheduler,
    """
OneBlockForForks: one block is set aside for each fork to come, however long it may become
    math.ceil(each.longest / S) * (1 + each.forks) → math.ceil(each.longest / S) + each.forks
""",
)

mistakes(
    PreemptingScheduler,
    """
PreemptsWithoutCopies: the blocks that must be copied are not part of the plan
    return self.hand_over() → return SchedulerOutput(self.hand_over().work, [])
DropsCopies: the copies that are planned are dropped when a sequence loses its blocks
    self.preemptions += len(members) → self.preemptions += len(members); self.plan.copies.clear()
FirstLoses: the first to come loses its blocks, not the last
    self.running[-1] → self.running[0]
* BackOfTheLine: who has lost its blocks waits behind all others
    self.waiting.insert(0, each) → pass
    self.preemptions += len(members) → self.preemptions += len(members); self.waiting += members
AtOnce: sequences are admitted in a step in which others lost their blocks
    if self.preemptions == before: → if True:
AlwaysSpare: the watermark is demanded also when nobody runs: it may wait for ever
    self.watermark if self.running else 0 → self.watermark
NoWatermark: the watermark is not left
    self.watermark if self.running else 0 → 0
OneMoreBlock: one more block than the watermark must be left
    self.watermark if self.running else 0 → self.watermark + 1 if self.running else 0
* OneOfAGroup: of a group, one alone loses its blocks
    self.members(seq_id) → [seq_id]
""",
)


@bug(PreemptingScheduler, "who loses its blocks counts as computed still")
class StaysComputed(PreemptingScheduler):
    def count(self, seq_id):
        sequence = self.sequences[seq_id]
        found = super().count(seq_id)
        return min(found, 1) if getattr(sequence, "was_preempted", False) else found

    def preempt(self, seq_id):
        for each in self.members(seq_id):
            vars(self.sequences[each])["was_preempted"] = True
        super().preempt(seq_id)


mistakes(
    PreemptingScheduler,
    """
NoHits: what was found in the cache is not counted
    self.hits += found → pass
""",
)


@bug(PreemptingScheduler, "the forks that are still to come have no places")
class NoPlaces(PreemptingScheduler):
    def places(self, seq_ids):
        return len(seq_ids)


changed(
    PreemptingScheduler,
    "SetsAside",
    "blocks are set aside for tokens to come",
    (
        "        found = sum(",
        "        S = self.manager.block_size\n"
        "        self.demand(sum(math.ceil(self.sequences[n].longest / S) for n in members))\n"
        "        found = sum(",
    ),
    told_by="two need two of four blocks now, and four later",
)


@bug(PreemptingScheduler, "a group enters when there are blocks for its first sequence")
class RoomForOne(PreemptingScheduler):
    def enter(self, members):
        super().enter(members[:1])
        for seq_id in members[1:]:
            self.hits += self.allocate(seq_id)
        self.start(members[1:])


mistakes(
    PreemptingScheduler,
    """
SkipsRows: rows are removed from the plan while a loop goes over it, which skips every second one
    self.plan.work[:] = [row for row in self.plan.work if row[0] not in members]
    → for row in self.plan.work:
          if row[0] in members:
              self.plan.work.remove(row)
""",
)

ADMITS = "        if self.preemptions == before:\n            self.admit()\n"
changed(
    PreemptingScheduler,
    "AdmitsFirst",
    "sequences are admitted before those that run are extended",
    (ADMITS, ""),
    (
        "        for seq_id in list(self.running):",
        "        self.admit()\n        for seq_id in list(self.running):",
    ),
)

changed(
    PreemptingScheduler,
    "AdmitsThenExtends",
    "newcomers are planned before those that run already",
    (ADMITS, ""),
    (
        "        for seq_id in list(self.running):",
        "        held = list(self.running)\n        self.admit()\n        for seq_id in held:",
    ),
)

mistakes(
    PreemptingScheduler,
    """
NeverAgain: nobody is admitted any more once a sequence has ever lost its blocks
    if self.preemptions == before: → if self.preemptions == 0:
CountsGroups: a group that loses its blocks counts as one preemption
    self.preemptions += len(members) → self.preemptions += 1
GroupTurned: a group waits in the opposite order
    for each in reversed(members): → for each in members:
AppendsEach: who has lost its blocks waits behind all others
    self.waiting.insert(0, each) → self.waiting.append(each)
BehindTheFirst: who has lost its blocks waits behind the first of those that wait
    self.waiting.insert(0, each) → self.waiting.insert(1, each)
KeepsBlocks: a sequence that is preempted keeps its blocks
    self.free(each) → pass
""",
)

changed(
    PreemptingScheduler,
    "ForgetsBlocks",
    "a sequence that is preempted keeps its blocks, although nothing of it counts as computed",
    ("self.free(each)", "self.sequences[each].num_computed = 0"),
)

mistakes(
    PreemptingScheduler,
    """
ClosedByManager: the tokens of a sequence that is preempted still count as computed
    self.free(each) → self.manager.free(each)
RowsStay: work of a group stays planned when the group loses its blocks
    if row[0] not in members] → ]
AllWork: the work of those that keep their blocks is dropped too
    [row for row in self.plan.work if row[0] not in members] → []
AskerLoses: the one that asks for blocks loses its own, not the last to come
    self.preempt(self.running[-1]) → self.preempt(seq_id)
LongestLoses: the longest loses its blocks, not the last to come
    self.running[-1] → max(self.running, key=lambda n: len(self.sequences[n].tokens))
NotTriedAgain: the one that asks is not extended after another has lost its blocks
    self.preempt(self.running[-1]) → self.preempt(self.running[-1]); break
StopsThere: the step ends as soon as one has lost its blocks
    self.preempt(self.running[-1]) → self.preempt(self.running[-1]); return self.hand_over()
""",
)

changed(
    PreemptingScheduler,
    "TriesTwice",
    "only one sequence loses its blocks, although that may not be enough",
    (
        "            while seq_id in self.running:\n"
        "                try:\n"
        "                    self.extend(seq_id)\n"
        "                    break\n"
        "                except OutOfBlocks:\n"
        "                    self.preempt(self.running[-1])\n",
        "            if seq_id in self.running:\n"
        "                try:\n"
        "                    self.extend(seq_id)\n"
        "                except OutOfBlocks:\n"
        "                    self.preempt(self.running[-1])\n"
        "                    if seq_id in self.running:\n"
        "                        self.extend(seq_id)\n",
    ),
    told_by="PreemptingScheduler.schedule raised OutOfBlocks",
)

mistakes(
    PreemptingScheduler,
    """
ExtendsTwice: a sequence is extended again after that has succeeded
    break → pass
    says: ran for more than
ExtendsTheLost: a sequence is still extended when it has lost its blocks itself
    while seq_id in self.running: → while True:
    says: has no attribute
OnePlaceLess: one sequence less than allowed may run
    > self.max_num_seqs: → >= self.max_num_seqs:
WithoutWork: one enters of which nothing can be computed in this step
    if not any(map(self.count, members)): → if False:
AllWithWork: a group waits until something of each member can be computed
    not any(map(self.count, members)) → not all(map(self.count, members))
""",
)

changed(
    PreemptingScheduler,
    "PassesOver",
    "one that cannot enter is passed over, and those behind it are admitted",
    (
        "        while self.waiting:\n            members = self.members(self.waiting[0])\n",
        "        for first in list(self.waiting):\n"
        "            if first not in self.waiting:\n"
        "                continue\n"
        "            members = self.members(first)\n",
    ),
    (
        "except OutOfBlocks:\n                return\n",
        "except OutOfBlocks:\n                continue\n",
    ),
)

mistakes(
    PreemptingScheduler,
    """
OneAtATime: no more than one sequence is admitted in a step
    while self.waiting: → if self.waiting:
MembersAlone: the members of a group that waits are admitted one by one
    self.members(self.waiting[0]) → [self.waiting[0]]
HitsTooEarly: what is found counts as hits also of one that cannot enter
    self.hits += found → pass
    found = sum(map(self.allocate, members)) → self.hits += sum(map(self.allocate, members))
HitsOfTheLast: `hits` holds what the last one found, not what all have found
    self.hits += found → self.hits = found
StaysOpen: one that cannot enter keeps the blocks that were found for it
    self.free(seq_id) → pass
FirstIsClosed: of a group that cannot enter, only the first gives back the blocks that were found
    for seq_id in reversed(members): → for seq_id in members[:1]:
NeedsAll: blocks are demanded for all tokens, also for those that were found
    self.sequences[seq_id].block_table.missing(self.count(seq_id)) for seq_id
    → math.ceil(len(self.sequences[seq_id].tokens) / self.manager.block_size) for seq_id
DemandsTokens: as many blocks are demanded as there are tokens to compute
    self.demand(need) → self.demand(sum(map(self.count, members)))
NoDemand: a group enters without any demand for blocks
    self.demand(need) → pass
ForgetsOutput: a sequence that is preempted loses the tokens that it has generated
    self.free(each)
    → self.free(each)
      del self.sequences[each].tokens[self.sequences[each].prompt_length :]
""",
)

changed(
    PreemptingScheduler,
    "SwallowsIt",
    "`enter` does not raise when the blocks are too few",
    ("self.free(seq_id)\n            raise\n", "self.free(seq_id)\n            return\n"),
    told_by="ran for more than",
)

changed(
    PreemptingScheduler,
    "BreaksOff",
    "who stands behind one that asked for blocks in vain gets no work in this step",
    (
        "        if self.preemptions == before:\n",
        "            if self.preemptions > before:\n"
        "                break\n"
        "        if self.preemptions == before:\n",
    ),
)

changed(
    PreemptingScheduler,
    "ResetForEach",
    "that one has lost its blocks is forgotten as soon as the next one is extended",
    (
        "        for seq_id in list(self.running):\n",
        "        for seq_id in list(self.running):\n            before = self.preemptions\n",
    ),
)

for name, end in ("DropsTheirCopies", 1), ("DropsCopiesFrom", 0):
    changed(
        PreemptingScheduler,
        name,
        "copies from or into blocks of a sequence that loses them are planned no more",
        (
            "        for each in reversed(members):\n",
            "        table = self.manager.get_block_table\n"
            "        lost = {block for each in members for block in table(each)}\n"
            f"        kept = [pair for pair in self.plan.copies if pair[{end}] not in lost]\n"
            "        self.plan.copies[:] = kept\n"
            "        for each in reversed(members):\n",
        ),
    )

changed(
    PreemptingScheduler,
    "DemandsEach",
    "a group enters when there are blocks for each of its members alone",
    (
        "            self.demand(need)\n",
        "            for seq_id in members:\n"
        "                table = self.sequences[seq_id].block_table\n"
        "                self.demand(table.missing(self.count(seq_id)))\n",
    ),
)

mistakes(
    PreemptingScheduler,
    """
PlacesOfNew: more sequences than allowed are admitted
    self.places(self.running + members) > → self.places(members) >
CountsAlone: the forks that are still to come have no places
    self.places(self.running + members) → len(self.running + members)
""",
)

changed(
    PreemptingScheduler,
    "NotMoreThanOne",
    "nobody is preempted for a second time in a step",
    (
        "                except OutOfBlocks:\n",
        "                except OutOfBlocks:\n"
        "                    if self.preemptions > before:\n"
        "                        break\n",
    ),
)

mistakes(
    ChunkedScheduler,
    """
* BudgetEach: every sequence has the whole budget for itself
    self.max_num_batched_tokens - spent → self.max_num_batched_tokens
BudgetOfSequences: the budget counts sequences, not tokens
    return min( → return (
    , self.max_num_batched_tokens - spent) → ) * (len(self.plan.work) < self.max_num_batched_tokens)
NoChunks: a prompt that is longer than what is left of the budget waits
    return min( → found = min(
    - spent) → - spent); return found * (found == super().count(seq_id) or not spent)
OneUnspent: the last token of the budget is not spent
    self.max_num_batched_tokens - spent → max(self.max_num_batched_tokens - 1 - spent, 0)
Starves: a budget that starves some who run is accepted
    if budget < config.max_num_seqs: → if False:
    says: should raise ValueError when the budget is 2 and 3 may run
TooStrict: a budget as large as `max_num_seqs` is refused
    budget < config.max_num_seqs → budget <= config.max_num_seqs
    says: ChunkedScheduler raised ValueError
AlwaysSome: without a budget, a step computes no more than some number of tokens
    math.inf if → max(config.max_num_seqs, 100) if
FirstChunk: the budget limits only the first chunk of a prompt, not those after it
    spent = sum( → spent = -math.inf if self.sequences[seq_id].num_computed else sum(
    self.max_num_batched_tokens - spent → max(self.max_num_batched_tokens - spent, 0)
StopsCounted: the budget counts the positions up to which is computed, not the tokens
    sum(stop - start for → sum(stop for
RowsCounted: a sequence in the plan costs one token of the budget, however many it computes
    sum(stop - start for _, start, stop in self.plan.work) → len(self.plan.work)
SingleTokensFree: single tokens do not count against the budget
    in self.plan.work) → in self.plan.work if stop - start > 1)
AtLeastOne: every sequence computes a token, also when nothing is left of the budget
    return min( → return max(1, min(
    - spent) → - spent))
AllOrNothing: a prompt is computed as a whole or, when the budget is too small for that, not at all
    return min( → wanted, left = (
    - spent) → - spent); return wanted if wanted <= left else 0
""",
)

mistakes(
    ModelRunner,
    """
* PositionsFromZero: every step counts the positions of its tokens from 0
    positions += range(start, stop) → positions += range(len(new))
PositionsTooLarge: the positions are one too large: the token to come is counted already
    tensor(positions) → (tensor(positions) + 1).clamp(max=self.model.context - 1)
PositionsInOneRow: the positions go on from one sequence to the next
    tensor(positions) → torch.arange(len(tokens)) + positions[0]
* FirstRow: the logits are taken after the first token of each sequence, not after the last
    tensor(last) - 1 → tensor([0, *last[:-1]])
RowAfter: the logits are taken one token after the last of each sequence
    tensor(last) - 1 → tensor(last).clamp(max=len(tokens) - 1)
WritesLate: keys and values are not written before they are read
    self.cache.write(layer, written, K, V) → pass
    return Y → self.cache.write(layer, written, K, V); return Y
FirstLayer: every layer reads the keys and values of the first one
    self.cache.K[layer], self.cache.V[layer] → self.cache.K[0], self.cache.V[0]
KeepsGradients: gradients are kept, and the cache with them
    with torch.no_grad() → with torch.enable_grad()
    says: The logits should have no gradient
ForgetsThePast: sequences see only the tokens of this step, not what is in the cache
    values, tables, lengths) → values, tables, torch.full_like(lengths, where.shape[1]))
""",
)

changed(
    ModelRunner,
    "OneAtATime",
    "the model is called for each sequence by itself",
    (
        "        if not batch:\n",
        "        if len(batch) > 1:\n"
        "            return torch.cat([self.forward([row]) for row in batch])\n"
        "        if not batch:\n",
    ),
    told_by="should be called once for the five sequences",
)

mistakes(
    EngineCore,
    """
IgnoresCopies: blocks are not copied before they are written: the plan's copies are ignored
    block_size, num_cpu_blocks) → block_size, num_cpu_blocks); self.runner.copy = len
* CopiesLate: blocks are copied after the model has run, when they are written
    self.runner.copy(plan.copies) → pass
    for row in plan.work]) → for row in plan.work]); self.runner.copy(plan.copies)
""",
)

changed(
    EngineCore,
    "DrawsTooEarly",
    "a chunk of a prompt gives a token although the prompt goes on",
    (
        "        try:\n            self.runner",
        "        for seq_id, _, stop in plan.work:\n"
        "            del self.sequences[seq_id].tokens[stop:]\n"
        "        try:\n            self.runner",
    ),
    classic=True,
)

changed(
    EngineCore,
    "DrawsAfterChunks",
    "a chunk in the middle of a prompt adds no token, but uses up a random number",
    (
        "            drawn = {",
        "            for (seq_id, _, stop), row in zip(plan.work, logits, strict=True):\n"
        "                if stop < len(self.sequences[seq_id].tokens):\n"
        "                    (_, generator), *_ = self.draw(seq_id, row)\n"
        "                    self.sequences[seq_id].generator = generator\n"
        "            drawn = {",
    ),
)

mistakes(
    EngineCore,
    """
WithoutStop: the stop token is left out of the result
    return added → return [row for row in added if row[1] != self.sequences[row[0]].sampling.stop]
OneMore: one token more than count is added
    (seq_id, sampling, self → (seq_id, sampling._replace(max_tokens=sampling.max_tokens + 1), self
OneGenerator: all samples of a request draw from one generator
    self.sequences[each].generator = generator → self.sequences[each].generator = draws[0][1]
OneDraw: all samples of a request begin with the same token
    self.scheduler.append(each, token) → self.scheduler.append(each, draws[0][0])
    [(each, token) for → [(each, draws[0][0]) for
TooCareful: the last token is counted among those that are kept
    math.ceil((length - 1) / S) → math.ceil(length / S)
    {beams * (length - 1)} tokens → {beams * length} tokens
    says: raised NeverFits: 13 tokens to keep
WaitsForEver: a request that can never fit waits for ever
    beams * math.ceil((length - 1) / S) > N → False
    says: should raise NeverFits when 13 slots are needed
QueuesFirst: a request waits before its generator is made, and stays when there is none for its seed
    demand_request(prompt, sampling) → pass
    says: after a request was refused: the seed is 2^64
* AbortsAgain: abort ends again what has ended already
    if self.sequences[sample].reason is None: → if True:
    says: EngineCore.abort raised ValueError
* KeepsWhatWasPlanned: an error inside the model leaves tables longer than what is computed
    self.scheduler.undo(plan.work) → pass
FirstEnds: only the first of a request's samples is asked whether it has ended
    self.finish(each) → each == seq_id and self.finish(each)
    says: three samples of one token each should all have ended
AbortsSome: abort stops at the first sample that has ended
    if self.sequences[sample].reason is None:
        self.end(sample, "abort")
    → if self.sequences[sample].reason is None:
          self.end(sample, "abort")
      else:
          return
""",
)

changed(
    EngineCore,
    "OnlyWhatIsFree",
    "a request is refused that fits when others have ended",
    (
        "        if max(samples, beams)",
        "        if math.ceil((length - 1) / S) > self.scheduler.manager.allocator.available:\n"
        '            raise NeverFits("not now")\n'
        "        if max(samples, beams)",
    ),
    told_by="raised NeverFits: not now",
)

changed(
    EngineCore,
    "OnlyExceptions",
    "a KeyboardInterrupt, which is no Exception, leaves tables longer than what is computed",
    ("except BaseException:", "except Exception:"),
)

DRAWN = """            drawn = {
                seq_id: self.draw(seq_id, row)
                for (seq_id, _, stop), row in zip(plan.work, logits, strict=True)
                if stop == len(self.sequences[seq_id].tokens)  # no chunk of a longer prompt
            }
"""
ADVANCED = """        for seq_id, _, stop in plan.work:
            self.scheduler.advance(seq_id, stop)
"""
changed(
    EngineCore,
    "AdvancedTooSoon",
    "tokens count as computed before `draw`, which may raise",
    (ADVANCED, ""),
    (DRAWN, ADVANCED.replace("  for", "      for").replace("  self", "      self") + DRAWN),
)

changed(
    EngineCore,
    "DrawsOutside",
    "the plan is not undone when `draw` raises",
    (DRAWN, ""),
    (ADVANCED, DRAWN.replace("\n    ", "\n").removeprefix("    ") + ADVANCED),
)

mistakes(
    EngineCore,
    """
NewGenerators: a sample does not keep the generator that has drawn: it draws its first number again
    self.sequences[each].generator = generator → pass
""",
)

changed(
    EngineCore,
    "ForksLate",
    "a sequence gets its token before it is forked: its forks have that token too",
    (
        "        samples = [seq_id, *(self.fork(seq_id) for _ in draws[1:])]\n"
        "        for each, (token, generator) in zip(samples, draws, strict=True):\n",
        "        samples = []\n"
        "        for token, generator in draws:\n"
        "            each = self.fork(seq_id) if samples else seq_id\n"
        "            samples.append(each)\n",
    ),
)

changed(
    EngineCore,
    "CopiesOutside",
    "what was planned is not taken back when a copy fails: it is made outside the `try`",
    (
        "        try:\n            self.runner.copy(plan.copies)\n",
        "        self.runner.copy(plan.copies)\n        try:\n",
    ),
)

mistakes(
    EngineCore,
    """
ForkOfAFork: each sample is forked from the one before it, so that the first still expects its forks
    (self.fork(seq_id) for → (seq_id := self.fork(seq_id) for
GeneratorsOfTheFirst: the generators of all samples are given to the first one
    self.sequences[each].generator = generator → self.sequences[seq_id].generator = generator
TokensOfTheFirst: the tokens of all samples are added to the first one
    self.scheduler.append(each, token) → self.scheduler.append(seq_id, token)
    says: Requests should end within 300 steps
TellsTheFirst: a step returns only the first sample's token
    (token, _) in zip(samples, draws, → (token, _) in zip(samples[:1], draws[:1],
TellsOneNumber: a step returns the tokens of all samples under the number of the first
    return [(each, token) for each, (token, _) in → return [(seq_id, token) for each, (token, _) in
NeverEnds: a sequence that has all its tokens does not end
    self.finish(each) → pass
FinishesFirst: whether a sequence ends is asked before it gets its token
    self.finish(each) → pass
    self.scheduler.append(each, token) → self.finish(each); self.scheduler.append(each, token)
AbortForgets: `abort` takes the request out of `requests`, where `collect` looks for it
    self.requests.get(request_id, []) → self.requests.pop(request_id, [])
AbortsTheFirst: `abort` ends only the first sample of a request
    self.requests.get(request_id, []): → self.requests.get(request_id, [])[:1]:
OtherReason: `abort` gives the reason 'length'
    self.end(sample, "abort") → self.end(sample, "length")
MustBeKnown: `abort` raises for a request that it does not know
    self.requests.get(request_id, []) → self.requests[request_id]
    says: EngineCore.abort raised KeyError
DrawsForChunks: a chunk of a prompt gives a token although the prompt goes on
    if stop == len(self.sequences[seq_id].tokens) →
NeverAdvances: what is computed never counts as computed
    self.scheduler.advance(seq_id, stop) → pass
""",
)

changed(
    EngineCore,
    "WritesFirst",
    "tokens are added, and samples forked, before what was read counts as computed",
    (ADVANCED, ""),
    (
        "for pair in self.write(seq_id, draws)]\n        ###",
        "for pair in self.write(seq_id, draws)]\n" + ADVANCED + "        ###",
    ),
)

mistakes(
    EngineCore,
    """
SwallowsErrors: an error inside the model is kept quiet: the step returns nothing
    self.scheduler.undo(plan.work) → self.scheduler.undo(plan.work); return []
    says: should raise RuntimeError when the model fails
NeverCopies: blocks are not copied before they are written: the plan's copies are ignored
    self.runner.copy(plan.copies) → pass
OneBeamMustFit: blocks are demanded for one beam only
    if beams * math.ceil((length - 1) / S) > N: → if math.ceil((length - 1) / S) > N:
    says: two beams need four blocks
RoundedTogether: the slots of all beams are added up before they are rounded up to blocks
    beams * math.ceil((length - 1) / S) → math.ceil(beams * (length - 1) / S)
    says: two beams need four blocks
OnlyWhenDrawn: the settings are looked at only if the temperature is above 0
    token_probabilities(torch.zeros → if sampling.temperature > 0: token_probabilities(torch.zeros
    says: top_p is 2 and the temperature 0
ContextTooShort: a request that just fills the context is refused
    if length > self.runner → if length >= self.runner
    says: exceed the context
""",
)

changed(
    EngineCore,
    "DrawsInOutput",
    "a sequence that is computed again gets a token after each piece of its output, not the last",
    (
        "stop == len(self.sequences[seq_id].tokens)",
        "stop >= self.sequences[seq_id].prompt_length",
    ),
)

mistakes(
    choose_beams,
    """
goes_on: a beam that has ended goes on
    total = log_p[:, None] → ended = torch.zeros_like(ended); total = log_p[:, None]
ended_costs: a beam that has ended pays for one more token
    total[ended, 0] = log_p[ended] → total[ended, 0] = (log_p[:, None] + next_log_p)[ended, 0]
only_the_next: the beams so far do not count: only the next token does
    total = log_p[:, None] → log_p = torch.zeros_like(log_p); total = log_p[:, None]
* without_ended: beams that have ended are left out
    total[ended, 0] = log_p[ended] → pass
multiplied: log-probabilities are multiplied, as if they were probabilities
    log_p[:, None] + next_log_p → log_p[:, None] * next_log_p
the_token_only: the log-probability that is returned is that of the token, not of the beam
    total.flatten()[place] → next_log_p.flatten()[place]
tokens_only: a beam that has ended gets a token, and not -1
    -1 if ended[place // V] else place % V → place % V
each_its_best: every beam keeps its own best continuation: they do not compete
    best = total.flatten().topk(count).indices.tolist()
    V = next_log_p.shape[1]
    → V = next_log_p.shape[1]
      best = [n * V + int(row.argmax()) for n, row in enumerate(total)][:width]
""",
)

mistakes(
    BeamEngine,
    """
KeepsDropped: beams that are not chosen keep their blocks
    self.scheduler.remove → self.sequences[seq_id].block_table = None; self.scheduler.remove
KeepsNumbers: beams that are not chosen stay among the sequences
    del self.sequences[seq_id] → pass
    says: beams left in the engine
OnlyGreedy: the search is greedy: only the first beam branches
    ended, sampling.beams) → ended, 1)
    self.sequences[going[0]].sampling.beams - len(going) → 0
LastOnly: the log-probability of a beam is that of its last token
    return torch.log_softmax( → self.sequences[seq_id].log_p = 0.0; return torch.log_softmax(
ByLogits: beams are compared by their logits, not by their log-probabilities
    torch.log_softmax(logits.to(precise), dim=0).cpu() → logits
NeverStops: the stop token ends no beam
    self.finish(seq_id)
    → if len(self.sequences[seq_id].output) == sampling.max_tokens:
          self.end(seq_id, "length")
""",
)


@bug(BeamEngine, "alpha is not used")
class WithoutAlpha(BeamEngine):
    def add(self, prompt, sampling=None):
        seq_id = super().add(prompt, sampling)
        sampling = self.sequences[seq_id].sampling
        self.sequences[seq_id].sampling = sampling._replace(alpha=0.5)
        return seq_id


mistakes(
    BeamEngine,
    """
KeepsLogP: a fork has the log-probability of its parent
    self.sequences[seq_id].log_p = → if seq_id in beams[: len(old)]: self.sequences[seq_id].log_p =
""",
)

mistakes(
    Engine,
    """
Backwards: the prompts' outputs come in the opposite order
    return self.collect(request_ids) → return self.collect(request_ids[::-1])
BeginsSome: prompts before the one that is refused have begun
    try:
        for prompt, own in zip(prompts, each, strict=True):
            request_ids.append(self.add(prompt, own))
    except BaseException:
        self.withdraw(request_ids)
    → try:
          for prompt, own in zip(prompts, each, strict=True):
              request_ids.append(self.add(prompt, own))
      except BaseException:
    says: running, -1, waiting
TakesAll: take gives all tokens every time, not only those that are new
    sequence.taken += len(new) → pass
* TakesLast: take gives the last token of each sample only
    return found → return list(dict(found).items())
FirstSample: only the first sample's tokens are handed out
    for token in new] → for token in new if sample == 0]
SampleZero: the tokens of all samples count as those of the first
    (sample, token) for → (0, token) for
OwnSteps: a stream hands out the tokens of its own steps only
    is_going = bool( → list(map(self.take, request_ids)); is_going = bool(
EndsTooSoon: a stream ends with the last step, and forgets what the steps of others have added
    while is_going: → while self.unfinished(request_ids):
    says: tokens of a stream whose last steps others have made
""",
)


@bug(
    Engine,
    "all tokens are computed before the stream hands out the first",
    told_by="two requests should run or wait, yours are 0",
)
class AllAtOnce(Engine):
    def stream(self, prompts, sampling=None):
        return iter(list(super().stream(prompts, sampling)))


@bug(
    Engine,
    "what nobody listens to any more goes on",
    told_by="free blocks, running, -1, waiting, requests at the end",
)
class GoesOn(Engine):
    def stream(self, prompts, sampling=None):
        events = super().stream(prompts, sampling)
        self.listened = [*getattr(self, "listened", []), events]
        yield next(events)
        yield from events


@bug(Engine, "the stream hands out everything at the end, prompt after prompt")
class AtTheEnd(Engine):
    def stream(self, prompts, sampling=None):
        yield from sorted(super().stream(prompts, sampling), key=lambda event: event[0])


changed(
    Engine,
    "LeavesRequests",
    "what was begun stays in the engine when the model fails",
    (
        "self.step()\n        except BaseException:\n            self.withdraw(request_ids)\n",
        "self.step()\n        except BaseException:\n",
    ),
    told_by="generate",
)


@bug(
    Engine,
    "prompts are continued one after the other",
    told_by="steps for 6 tokens of each prompt",
)
class OneByOne(Engine):
    def generate(self, prompts, sampling=None):
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        generate = super().generate
        return [generate([prompt], [own])[0] for prompt, own in zip(prompts, each, strict=True)]


@bug(
    Engine,
    "what has ended stays in the engine",
    told_by="steps for 6 tokens of each prompt",
)
class KeepsAll(Engine):
    def collect(self, request_ids):
        requests = {each: self.requests[each] for each in request_ids}
        samples = {each: self.sequences[each] for row in requests.values() for each in row}
        found = super().collect(request_ids)
        self.requests |= requests
        self.sequences |= samples
        return found


changed(
    Engine,
    "StreamOnlyExceptions",
    "a stream that is closed is not withdrawn: its end comes as GeneratorExit, no Exception",
    (
        "        finally:\n            self.withdraw(request_ids)\n",
        "        except Exception:\n"
        "            self.withdraw(request_ids)\n"
        "            raise\n"
        "        self.withdraw(request_ids)\n",
    ),
    told_by="free blocks, running, -1, waiting, requests at the end",
)

changed(
    Engine,
    "GenerateOnlyExceptions",
    "a KeyboardInterrupt, which is no Exception, leaves the requests in the engine",
    ("self.step()\n        except BaseException:", "self.step()\n        except Exception:"),
    ("own))\n        except BaseException:", "own))\n        except Exception:"),
    told_by="free blocks, running, -1, waiting, requests: generate",
)

mistakes(
    Engine,
    """
ServesEverybody: `generate` goes on until all requests have ended, those of others too
    while self.unfinished(request_ids): → while self.scheduler.running or self.scheduler.waiting:
    says: unfinished ones, which another has added
CollectsAll: `generate` takes the requests of others out of the engine too
    return self.collect(request_ids) → return self.collect(list(self.requests))
    says: generate
OneStepMore: a stream makes one more step when all has ended
    if is_going: → if True:
    says: steps that were made, and requests left
""",
)


@bug(SwapSpace, "a block that several sequences use goes out once for each", classic=True)
class OutForEach(SwapSpace):
    def swap_out(self, tables):
        copies = []
        for seq_id, table in tables.items():
            copies += super().swap_out({seq_id: table})
        return copies


mistakes(
    SwapSpace,
    """
CountsUses: every use of a block counts as a block
    len(blocks) > self.available → sum(map(len, tables.values())) > self.available
    f"{len(blocks)} blocks to swap, and {self.available} on the host" → "too few"
    says: raised OutOfBlocks: too few
KeepsHost: blocks on the host are never free again
    self.allocator.free(block) → pass
ToFrom: the copies are given as (to, from)
    [(block, self.first + place) for → [(self.first + place, block) for
NotAdded: the number of the first host block is not added
    [(block, self.first + place) for → [(block, place) for
    says: different blocks from 100 to 108
""",
)


@bug(SwapSpace, "some of a group go out although there is no room for all")
class SomeGoOut(SwapSpace):
    def swap_out(self, tables):
        try:
            return super().swap_out(tables)
        except OutOfBlocks:
            copies = []
            for seq_id, table in tables.items():
                copies += super().swap_out({seq_id: table})
            return copies


mistakes(
    SwapSpace,
    """
BackForEach: a block comes back to each sequence that used it as a block of its own
    self.tables[seq_id]] for → self.tables[seq_id]][:: 1 if seq_id == seq_ids[0] else -1] for
AllAvailable: blocks on the host count as available although they are in use
    return self.allocator.available → return len(self.allocator.references)
    says: raised OutOfBlocks: all 6 blocks are in use
OneRemembered: only the first of several sequences is remembered
    self.tables[seq_id] = [here → if seq_id == next(iter(tables)): self.tables[seq_id] = [here
    says: SwapSpace.swap_in raised KeyError
KeptPlaces: where a block has gone is remembered from call to call, when it holds something else
    here: dict[int, int] = {} → here = self.__dict__.setdefault('here', {})
NeverShares: a block that several use has one user on the host
    self.allocator.share(here[block]) → pass
OthersForgotten: the tables of those that went out earlier are forgotten
    here: dict[int, int] = {} → here, self.tables = {}, {}
OneBlockLess: the last block on the host is never used
    len(blocks) > self.available → len(blocks) >= self.available
NotDropped: sequences that come back keep their blocks on the host
    self.drop(seq_id) → pass
OnlyForgotten: the tables of sequences that come back are forgotten, but their blocks are not freed
    self.drop(seq_id) → del self.tables[seq_id]
FirstDropped: of several sequences that come back, only the first leaves the host
    self.drop(seq_id) → seq_id == seq_ids[0] and self.drop(seq_id)
BackTurned: the copies back are given as (to, from)
    [(self.first + place, block) for → [(block, self.first + place) for
BackNotAdded: the number of the first host block is not added to what comes back
    [(self.first + place, block) for → [(place, block) for
""",
)

changed(
    SwapSpace,
    "DroppedFirst",
    "blocks on the host are freed although the number of blocks is wrong",
    (
        "        there = dict(",
        "        own, places = {n: self.tables[n] for n in seq_ids}, self.blocks(seq_ids)\n"
        "        for seq_id in seq_ids:\n"
        "            self.drop(seq_id)\n"
        "        there = dict(",
    ),
    ("zip(self.blocks(seq_ids), blocks", "zip(places, blocks"),
    ("for place in self.tables[seq_id]] for", "for place in own[seq_id]] for"),
    (
        "in seq_ids}\n"
        "        for seq_id in seq_ids:\n"
        "            self.drop(seq_id)\n"
        "        return",
        "in seq_ids}\n        return",
    ),
)

mistakes(
    SwapSpace,
    """
NotAtOnce: some blocks are taken before it is known that they are too few
    if len(blocks) > self.available: → if False:
""",
)

mistakes(
    SwappingScheduler,
    """
* ComputesAgain: what is swapped out is computed again all the same
    self.sequences[each].num_computed = computed[each] → self.space.drop(each)
NoCopiesOut: nothing is copied out
    copies = self.space.swap_out( → copies, _ = [], self.space.swap_out(
KeepsOnHost: the host's blocks are kept when a sequence ends that is swapped out
    self.space.drop(seq_id) → pass
""",
)


@bug(
    SwappingScheduler,
    "nothing is computed again when the host is full: it is an error",
    told_by="raised RuntimeError: the host is full",
)
class NeverRecomputes(SwappingScheduler):
    def preempt(self, seq_id):
        tables = map(self.manager.get_block_table, self.members(seq_id))
        blocks = {block for table in tables for block in table}
        if len(blocks) > self.space.available:
            raise RuntimeError("the host is full")
        super().preempt(seq_id)


mistakes(
    SwappingScheduler,
    """
CountsGroups: a group counts as one swap
    self.swaps += len(members) → self.swaps += 1
""",
)

changed(
    SwappingScheduler,
    "BackInReverse",
    "the blocks of a table come back in the opposite order",
    (
        "        self.start(members)\n",
        "        self.start(members)\n"
        "        for each in members:\n"
        "            self.sequences[each].block_table.blocks.reverse()\n",
    ),
)

mistakes(
    SwappingScheduler,
    """
ComputedLost: what is swapped out no longer counts as computed
    self.sequences[each].num_computed = computed[each] → pass
""",
)

changed(
    SwappingScheduler,
    "OutFirst",
    "blocks go out before the copies that were planned earlier, and that fill them",
    (
        "super().preempt(seq_id)\n        self.plan.copies.extend(copies)",
        "super().preempt(seq_id)\n        self.plan.copies[:0] = copies",
    ),
)

mistakes(
    SwappingScheduler,
    """
OutReplaces: what goes out replaces the copies that are planned already
    self.swaps += len(members) → self.swaps += len(members); self.plan.copies[:] = copies
BackReplaces: what comes back replaces the copies that are planned already
    tables, copies = → self.plan.copies.clear(); tables, copies =
NotCopiedBack: what comes back from the host is not copied
    self.space.swap_in(members, blocks) → self.space.swap_in(members, blocks)[0], []
OutOneByOne: the members of a group go out one by one, and share nothing on the host
    self.space.swap_out(tables) → [p for n in tables for p in self.space.swap_out({n: tables[n]})]
OnlyOneGoesOut: of a group, only one member goes out to the host
    get_block_table(each) for each in members → get_block_table(each) for each in [seq_id]
AlwaysShares: `share` counts the first user of a block too, whom `allocate` has counted already
    blocks.remove(block) → self.manager.allocator.share(block)
""",
)

changed(
    SwappingScheduler,
    "BackOneByOne",
    "the members of a group come back one by one, and share nothing any more",
    (
        "        blocks = [self.manager.allocator.allocate() for _ in places]\n"
        "        tables, copies = self.space.swap_in(members, blocks)\n",
        "        blocks, tables, copies = [], {}, []\n"
        "        for each in members:\n"
        "            new = [self.manager.allocator.allocate() for _ in self.space.blocks([each])]\n"
        "            table, back = self.space.swap_in([each], new)\n"
        "            tables, copies, blocks = tables | table, copies + back, blocks + new\n",
    ),
)

changed(
    SwappingScheduler,
    "NobodyLoses",
    "nobody loses its blocks when the host is full",
    ("            super().preempt(seq_id)\n            return\n", "            return\n"),
    told_by="ran for more than",
)

changed(
    SwappingScheduler,
    "StaysComputed",
    "what the host had no room for still counts as computed",
    (
        "            super().preempt(seq_id)\n            return\n",
        "            super().preempt(seq_id)\n"
        "            for each in members:\n"
        "                self.sequences[each].num_computed = computed[each]\n"
        "            return\n",
    ),
)

changed(
    SwappingScheduler,
    "SwapsAnyway",
    "what the host had no room for counts as a swap",
    (
        "            super().preempt(seq_id)\n            return\n",
        "            super().preempt(seq_id)\n"
        "            self.swaps += len(members)\n"
        "            return\n",
    ),
)

changed(
    SwappingScheduler,
    "AskedTooLate",
    "the tables are given to `swap_out` after their blocks were taken away",
    (
        "        tables = {each",
        "        super().preempt(seq_id)\n        tables = {each",
    ),
    (
        "            super().preempt(seq_id)\n"
        "            return\n"
        "        super().preempt(seq_id)\n",
        "            return\n",
    ),
)

mistakes(
    SwappingScheduler,
    """
WholeBlocks: a table that comes back has as many positions as its blocks have slots
    append(sequence.num_computed, → append(len(tables[each]) * self.manager.block_size,
OneStaysComputed: of a group that is swapped out, only one member still counts as computed
    each].num_computed = computed[each] → seq_id].num_computed = computed[seq_id]
FullBlocksOnly: only full blocks go out, and what is in the last one is computed again
    computed = {each: → S = self.manager.block_size; computed = {each:
    .num_computed for each in members} → .num_computed // S * S for each in members}
    get_block_table(each) for → get_block_table(each)[: computed[each] // S] for
CountsAsHits: what comes back from the host counts as found in the cache
    sequence = self → self.hits += self.sequences[each].num_computed; sequence = self
SeenByEach: a block that two of a group share has one user when it is back
    self.manager.allocator.share(block) → pass
""",
)

changed(
    SwappingScheduler,
    "NoneAfterTheFirst",
    "a block has one user more than it should when it is shared by a group that comes back",
    ("if block in blocks:", "if sum(block in table for table in tables.values()) == 1:"),
)

mistakes(
    SwappingScheduler,
    """
CountsBackToo: what comes back counts as a swap too
    places = self → self.swaps += len(members); places = self
CountsBlocks: the blocks that go out are counted as swaps, not the sequences
    self.swaps += len(members) → self.swaps += len(copies)
""",
)

changed(
    SwappingScheduler,
    "EmptyTables",
    "a table that comes back has the tokens of its sequence as positions, not what is computed",
    ("append(sequence.num_computed,", "append(len(sequence.tokens),"),
)

mistakes(
    SwappingScheduler,
    """
OneForAll: a whole group comes back with as many tokens computed as one of its members has
    = computed[each] → = computed[seq_id]
FirstForAll: a whole group comes back with as many tokens computed as one of its members has
    = computed[each] → = computed[members[0]]
""",
)

changed(
    ChunkedScheduler,
    "LostWithAFailure",
    "what a step has spent is taken from the next one's budget when it has failed",
    (
        "        spent = sum(stop - start for _, start, stop in self.plan.work)\n"
        "        return min(super().count(seq_id), self.max_num_batched_tokens - spent)\n",
        "        spent = vars(self).get('spent', 0)\n"
        "        return min(super().count(seq_id), self.max_num_batched_tokens - spent)\n\n"
        "    def extend(self, seq_id):\n"
        "        before = len(self.plan.work)\n"
        "        super().extend(seq_id)\n"
        "        here = sum(stop - start for _, start, stop in self.plan.work[before:])\n"
        "        self.spent = vars(self).get('spent', 0) + here\n\n"
        "    def advance(self, seq_id, stop):\n"
        "        self.spent = 0\n"
        "        super().advance(seq_id, stop)\n",
    ),
)

changed(
    BeamEngine,
    "DroppedRowsStay",
    "the rows of beams that are dropped stay in `next_log_p`",
    (
        "self.next_log_p.pop(seq_id, None) for seq_id in beams]",
        "self.next_log_p.get(seq_id) for seq_id in beams]",
    ),
    (
        "        new: list[int] = []\n",
        "        for row, _, _ in chosen:\n"
        "            self.next_log_p.pop(beams[row], None)\n"
        "        new: list[int] = []\n",
    ),
    told_by="beams left in `next_log_p`",
    classic=True,
)

equivalent(
    PreemptingScheduler,
    "for seq_id in list(self.running): → for seq_id in (lambda same: same)(self.running):",
    "only the last ones are removed, and the loop has not come to them",
)
equivalent(
    ChunkedScheduler,
    "limit = config.max_num_batched_tokens → limit = "
    "vars(self).setdefault('limit', config.max_num_batched_tokens)",
    "a constructor runs once",
)
equivalent(
    ChunkedScheduler,
    "budget = math.inf if limit is None else limit → budget = "
    "vars(self).setdefault('budget', math.inf if limit is None else limit)",
    "a constructor runs once",
)
equivalent(
    ChunkedScheduler,
    "return min(super().count(seq_id), self.max_num_batched_tokens - spent) → return "
    "min(self.max_num_batched_tokens - spent, super().count(seq_id))",
    "the smaller of two has no order",
)
equivalent(
    ModelRunner,
    "return torch.empty(0, 0, device=self.model.device) → return torch.empty(0, 0)",
    "checks run where the default device is the model's",
)
equivalent(
    ModelRunner,
    "tensor = partial(torch.tensor, device=self.model.device) → tensor = partial(torch.tensor)",
    "checks run where the default device is the model's",
)
equivalent(
    ModelRunner,
    "groups: dict[int, list[tuple]] = {} → groups: dict[list[tuple], int] = {}",
    "an annotation",
)
equivalent(
    ModelRunner,
    "return torch.empty(0, 0, device=self.model.device) → "
    "return torch.empty(0, 1, device=self.model.device)",
    "no rows either",
)
equivalent(
    ModelRunner,
    "groups.setdefault(len(new), []).append((list(rows), blocks, stop)) → "
    "groups.setdefault(len(new), []).append(((lambda same: same)(rows), blocks, stop))",
    "rows are only read",
)
equivalent(
    ModelRunner,
    "padded = tensor([blocks + [0] * (longest - len(blocks)) for _, blocks, _ in group]) → "
    "padded = tensor([blocks + [1] * (longest - len(blocks)) for _, blocks, _ in group])",
    "what is beyond the length is not read",
)
equivalent(
    ModelRunner,
    "tensor = partial(torch.tensor, device=self.model.device) → tensor = "
    "vars(self).setdefault('tensor', partial(torch.tensor, device=self.model.device))",
    "it is the same each time",
)
equivalent(
    ModelRunner,
    "return torch.empty(0, 0, device=self.model.device) → "
    "return torch.empty(0, 0, device=self.model.device).squeeze()",
    "no rows either",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.zeros(2, 1), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.ones(1, 2), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.zeros(2, 2), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "token_probabilities(torch.zeros(1, 2), sampling.temperature, sampling.top_k, "
    "sampling.top_p) → token_probabilities(torch.zeros(1, 3), sampling.temperature, "
    "sampling.top_k, sampling.top_p)",
    "any logits show whether the settings are in their ranges",
)
equivalent(
    EngineCore,
    "if max(samples, beams) > self.scheduler.max_num_seqs: → if max(beams, samples) > "
    "self.scheduler.max_num_seqs:",
    "the larger of two has no order",
)
equivalent(
    EngineCore,
    "drawn = {seq_id: self.draw(seq_id, row) for (seq_id, _, stop), row in zip(plan.work, "
    "logits, strict=True) if stop == len(self.sequences[seq_id].tokens)} → drawn = {seq_id: "
    "self.draw(seq_id, row) for (seq_id, _, stop), row in zip(plan.work, logits) if stop == "
    "len(self.sequences[seq_id].tokens)}",
    "both have the same length",
)
equivalent(
    EngineCore,
    "drawn = {seq_id: self.draw(seq_id, row) for (seq_id, _, stop), row in zip(plan.work, "
    "logits, strict=True) if stop == len(self.sequences[seq_id].tokens)} → drawn = {seq_id: "
    "self.draw(seq_id, row) for (seq_id, _, stop), row in zip(plan.work, logits, "
    "strict=False) if stop == len(self.sequences[seq_id].tokens)}",
    "both have the same length",
)
equivalent(
    EngineCore,
    "for each, (token, generator) in zip(samples, draws, strict=True): → for each, (token, "
    "generator) in zip(samples, draws):",
    "both have the same length",
)
equivalent(
    EngineCore,
    "for each, (token, generator) in zip(samples, draws, strict=True): → for each, (token, "
    "generator) in zip(samples, draws, strict=False):",
    "both have the same length",
)
equivalent(
    EngineCore,
    "return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)] → return "
    "[(each, token) for each, (token, _) in zip(samples, draws)]",
    "both have the same length",
)
equivalent(
    EngineCore,
    "return [(each, token) for each, (token, _) in zip(samples, draws, strict=True)] → return "
    "[(each, token) for each, (token, _) in zip(samples, draws, strict=False)]",
    "both have the same length",
)
equivalent(
    choose_beams,
    "total[ended, 0] = log_p[ended] → total[ended, 1] = log_p[ended]",
    "the token of one that has ended is not given",
)
equivalent(
    choose_beams,
    "count = min(width, int((total > -math.inf).sum())) → count = min(int((total > "
    "-math.inf).sum()), width)",
    "the smaller of two has no order",
)
equivalent(
    BeamEngine,
    "unused = torch.zeros_like(next((row for row in rows if row is not None))) → unused = "
    "torch.ones_like(next((row for row in rows if row is not None)))",
    "what stands for one that has ended does not count",
)
equivalent(
    BeamEngine,
    "for seq_id, (row, token, value) in zip(new, chosen, strict=True): → for seq_id, (row, "
    "token, value) in zip(new, chosen):",
    "both have the same length",
)
equivalent(
    BeamEngine,
    "for seq_id, (row, token, value) in zip(new, chosen, strict=True): → for seq_id, (row, "
    "token, value) in zip(new, chosen, strict=False):",
    "both have the same length",
)
equivalent(
    BeamEngine,
    "unused = torch.zeros_like(next((row for row in rows if row is not None))) → unused = "
    "vars(self).setdefault('unused', torch.zeros_like(next((row for row in rows if row is not "
    "None))))",
    "what stands for one that has ended does not count",
)

black_box(
    choose_beams,
    "ended_costs",
    curve="""continue_pages(
        BeamEngine, SamplingParams(COUNT, beams=8, stop=tokenizer.encode(b".")[0])
    )[2]""",
    label="log p of the best beams",
    over="steps",
    after="continue_pages",
)

wrong_answers(choose_beams_fault, "C")
mistakes(
    choose_beams_fault,
    """
none_ended: no beam has ended
    [False, True] → [False, False]
    says: With these arguments the black box gives what is right
at_no_cost: the token of the beam that has ended would cost nothing
    [-7.0, -8.0] → [0.0, -8.0]
    says: With these arguments the black box gives what is right
behind: the beam that has ended is behind all others, with its token and without
    [-3.0, -1.0] → [-3.0, -9.0]
    says: With these arguments the black box gives what is right
equal: two candidates are equally probable
    [-0.1, -2.4] → [-2.4, -2.4]
    says: two candidates are equally probable
no_width: the width is missing
    next_log_p, ended, 2) → next_log_p, ended)
    says: choose_beams raised TypeError
lists: the numbers are lists of Python's
    (log_p, next_log_p → (log_p.tolist(), next_log_p
    says: choose_beams raised AttributeError
""",
)
