"""Rows that are filled again: what a response is does not depend on when and where it is decoded.

The model is a tiny one that reads text, so that programs compile fast. What any schedule yields is
compared with `whole`, for which every response had a row of its own from the first step on.
"""

import heapq
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxevolve.models.config import Config
from jaxevolve.models.inputs import Prompts
from jaxevolve.models.qwen2_5_vl import Qwen2_5_VL, init_params
from jaxevolve.rollout import caches, decode, engine
from jaxevolve.rollout.device import READ_AT_ONCE
from jaxevolve.rollout.generate import generate, one
from jaxevolve.rollout.jobs import Job
from jaxevolve.rollout.retrace import fork
from jaxevolve.rollout.sampling import MATERNAL, RETRACE, Sampling

CONFIG = Config(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    mrope_section=(2, 1, 1),
    tie_word_embeddings=True,
)
MODEL = Qwen2_5_VL(CONFIG)
P, G, LIMIT = 32, 2, 24
SHORT, LONG = 6, 64  # rooms for a prompt
RULES = Sampling(stop_ids=(3, 17, 29, 31))
KEY = jax.random.key(0)


def make_prompts(count, room=SHORT, seed=0):
    """Prompts of 1 to `room` tokens."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, room + 1, count).astype(np.int32)
    beyond = np.arange(room) >= length[:, None]
    empty = np.zeros((count, 0, 1), np.int32)
    return Prompts(
        tokens=np.where(beyond, 0, rng.integers(0, 40, (count, room))).astype(np.int32),
        length=length,
        positions=np.tile(np.arange(room, dtype=np.int32)[:, None], (count, 1, 3)),
        next_position=length,
        ids=rng.integers(0, 2**32, count, np.uint32),
        image_token=np.full((count, room), -1, np.int32),
        pixels=empty[..., None].astype(np.uint8),
        patch_hw=empty[..., None],
        segment=empty,
    )


PROMPTS = make_prompts(P)


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: init_params(CONFIG, jax.random.key(0)))
    return jax.tree.map(
        lambda x: jax.numpy.asarray(0.3 * rng.standard_normal(x.shape) + (x.ndim == 1), "f4"),
        shapes,
    )


@pytest.fixture(scope="module")
def whole(params):
    responses, _ = generate(
        MODEL,
        params,
        PROMPTS,
        n=G,
        max_tokens=LIMIT,
        rows=P * G,
        key=KEY,
        temperature=1.0,
        rules=RULES,
        width=G,
        fewest=G,
        chunk=LIMIT,
    )
    assert responses.lengths.min() == 1
    assert len(np.unique(responses.lengths)) > 12
    assert 0.3 < responses.stopped.mean() < 0.9
    return responses


def job(p, members=range(G), limit=LIMIT, tag=None):
    return Job(one(PROMPTS, p), MATERNAL, members, limit, tag=p if tag is None else tag)


def run(
    params, jobs, *, after=lambda *_: (), temperature=1.0, rows=8, chunk=LIMIT, shards=1, fewest=1
):
    """{(tag, member): response} in the order of their ends, and what it took."""
    ended = {}

    def finish(job, m, response):
        name = (job.tag, job.members[m])
        assert name not in ended
        ended[name] = response
        return after(job, m, response)

    stats = engine.run(
        MODEL,
        params,
        jobs,
        finish,
        key=KEY,
        temperature=temperature,
        rules=RULES,
        rows=rows,
        width=G,
        fewest=fewest,
        chunk=chunk,
        shards=shards,
        place=lambda tree, axis=0: jax.device_put(tree),
    )
    assert stats.tokens == sum(len(response.tokens) for response in ended.values())
    return ended, stats


def assert_whole(response, whole, p, member, limit=LIMIT):
    """Bit by bit what was drawn; log-probabilities as far as other shapes let XLA round alike."""
    length = min(limit, whole.lengths[p, member])
    np.testing.assert_array_equal(response.tokens, whole.tokens[p, member, :length])
    np.testing.assert_allclose(response.logprobs, whole.logprobs[p, member, :length], atol=2e-5)
    assert response.stopped == (whole.stopped[p, member] and whole.lengths[p, member] <= limit)


@pytest.fixture
def watched(monkeypatch):
    """What the engine asks for: {row: (seat, number)} a start, [(seat, sample id)] a read."""
    seen = SimpleNamespace(starts=[], reads=[])
    start, insert, ids = decode.start_rows, decode.insert, []

    def start_rows(decoding, new, limit, prefix, number, keys):
        new, prefix, number = map(np.asarray, (new, prefix, number))
        seen.starts.append({int(r): (int(prefix[r]), int(number[r])) for r in np.flatnonzero(new)})
        return start(decoding, new, limit, prefix, number, keys)

    def prefill(model, params, prompts, noise, program=decode.prefill):
        ids[:] = np.asarray(prompts.ids).tolist()
        return program(model, params, prompts, noise)

    def put(pool, new, places):
        kept = np.asarray(places) < len(pool.length)  # the others fill the shape
        seen.reads.append([pair for pair, k in zip(zip(places.tolist(), ids), kept) if k])
        return insert(pool, new, places)

    for name, program in (("start_rows", start_rows), ("prefill", prefill), ("insert", put)):
        monkeypatch.setattr(decode, name, program)
    return seen


def end_of_last(lengths, rows):
    """The step at which all have ended if each in turn gets the first row that is free."""
    ends = [0] * rows
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + int(length))
    return max(ends)


@pytest.mark.parametrize(("rows", "chunk"), [(3, LIMIT), (8, LIMIT), (8, 9), (8, 100)])
def test_a_sample_is_the_same_in_any_number_of_rows_and_none_of_them_waits(
    params, whole, rows, chunk
):
    ended, stats = run(params, map(job, range(P)), rows=rows, chunk=chunk)
    assert ended.keys() == {(p, g) for p in range(P) for g in range(G)}
    for (p, g), response in ended.items():
        assert_whole(response, whole, p, g)
    lengths = whole.lengths.ravel()
    assert stats.row_steps == rows * end_of_last(lengths, rows)
    assert stats.row_steps <= lengths.sum() + (rows - 1) * LIMIT  # idle only at the end
    fixed = sum(rows * lengths[i : i + rows].max() for i in range(0, P * G, rows))
    assert stats.row_steps < 0.75 * fixed


@pytest.mark.parametrize("shards", [1, 2])
def test_a_sample_does_not_depend_on_the_order_of_jobs_and_on_the_part_it_is_in(
    params, whole, watched, shards
):
    order = np.random.default_rng(shards).permutation(P)
    ended, stats = run(params, map(job, order), shards=shards)
    assert ended.keys() == {(p, g) for p in range(P) for g in range(G)}
    for (p, g), response in ended.items():
        assert_whole(response, whole, p, g)
    # Every prompt was read once, into seats that were used again and again.
    reads = [read for batch in watched.reads for read in batch]
    assert [id for _, id in reads] == PROMPTS.ids[order].tolist()
    assert stats.read_tokens == PROMPTS.length.sum()
    seats = Counter(seat for seat, _ in reads)
    table = engine.sizes(8, G, 1, shards, None)
    assert seats.keys() <= set(range(table.seats))
    assert seats.total() == P
    assert max(seats.values()) > 1
    # A row is in the part of its prompt.
    started = [item for start in watched.starts for item in start.items()]
    assert len(started) == P * G
    assert all(row * shards // 8 == table.part(seat) for row, (seat, _) in started)


@st.composite
def schedules(draw):
    """[(prompt, members, limit, the job after whose first response it comes, if any)].

    The first has the largest limit, so that all of them share their programs.
    """
    order = draw(st.lists(st.integers(0, P - 1), min_size=1, max_size=14, unique=True))
    members = st.sampled_from([(0,), (1,), (0, 1), (1, 0)])
    limits = st.integers(0, LIMIT)
    return [
        (p, draw(members), draw(limits) if i else LIMIT, draw(st.sampled_from([None, *order[:i]])))
        for i, p in enumerate(order)
    ]


@settings(max_examples=60)
@given(schedules(), st.sampled_from([1, 2]), st.sampled_from([9, LIMIT]))
def test_every_response_comes_once_and_is_itself_whatever_the_schedule(
    params, whole, schedule, shards, chunk
):
    def waiting(parent):
        return [job(p, *how) for p, *how, up in schedule if up == parent]

    def after(job, m, response):
        return waiting(job.tag) if m == 0 else []

    ended, stats = run(params, waiting(None), after=after, shards=shards, chunk=chunk)
    assert len(ended) == sum(len(members) for _, members, *_ in schedule)
    for p, members, limit, _ in schedule:
        for member in members:
            assert_whole(ended[p, member], whole, p, member, limit)
    assert stats.read_tokens == sum(PROMPTS.length[p] for p, *_ in schedule)


def test_a_row_that_has_ended_does_not_disturb_the_next_prompt_in_its_seat(params, whole, watched):
    lengths = whole.lengths
    other = next(p for p in range(P) if 1 < lengths[p, 0] < lengths[p, 1] - 8)
    late, early = np.argsort(lengths[:, 0])[[-1, -2]]
    assert other not in (late, early)

    # Seat 0 has rows 0 and 1, seat 1 row 2. Rows 0 and 2 end together, seat 0 stays in use; so the
    # next prompt gets seat 1 and row 0, while row 2 keeps the seat and number of its last response.
    def after(ended, m, response):
        return [job(late, (0,))] if ended.tag == early else []

    limit = int(lengths[other, 0])
    ended, _ = run(params, [job(other), job(early, (0,), limit)], after=after, chunk=limit)
    assert watched.starts == [{0: (0, 0), 1: (0, 1), 2: (1, 0)}, {0: (1, 0)}]
    assert_whole(ended[late, 0], whole, late, 0)
    assert len(ended[late, 0].tokens) == LIMIT


def test_a_job_that_follows_another_starts_before_the_others_have_ended(params, whole):
    early, late = np.argsort(whole.lengths[:, 0])[[0, -1]]
    assert whole.lengths[late, 0] == LIMIT

    def after(ended, m, response):
        return [job(early, (1,), 2, tag="next")] if ended.tag == early else []

    ended, stats = run(params, [job(late, (0,)), job(early, (0,), 3)], after=after, chunk=9)
    assert list(ended) == [(early, 0), ("next", 1), (late, 0)]
    assert stats.row_steps == 8 * LIMIT


def test_the_pool_grows_for_longer_prompts_and_forgets_nothing(params):
    """Greedy: a response that is cut and read again as part of its prompt goes on as it went."""
    jobs = [job(p, (0,), 14 + p % 5) for p in range(20)]
    alone, _ = run(params, jobs, temperature=0.0)
    anchors = np.array([len(alone[p, 0].tokens) * 2 // 3 for p in range(20)])

    def after(job, m, response):
        if job.phase == RETRACE:
            return []
        anchor = anchors[job.tag]
        longer = fork(job.prompt, response.tokens[None], anchor[None], LIMIT)
        assert longer.tokens.shape[1] == LONG
        return [Job(longer, RETRACE, (0,), job.limit - anchor, tag=(job.tag, "again"))]

    ended, _ = run(params, jobs, temperature=0.0, after=after)
    assert len(ended) == 40
    for p in range(20):
        tokens = alone[p, 0].tokens
        np.testing.assert_array_equal(ended[p, 0].tokens, tokens)
        np.testing.assert_array_equal(ended[(p, "again"), 0].tokens, tokens[anchors[p] :])
    assert len({tuple(response.tokens) for response in alone.values()}) > 10


def cut_and_continue(params, *, reuse, jobs=20, rows=32, temperature=1.0, **settings):
    """Responses cut at two thirds, and two that follow from each: all, and what it took."""

    def after(job, m, response):
        if job.phase == RETRACE:
            return []
        anchor = len(response.tokens) * 2 // 3
        longer = fork(job.prompt, response.tokens[None], np.array([anchor]), LIMIT)
        members = range(2 * m, 2 * m + 2)
        return [
            Job(
                longer,
                RETRACE,
                members,
                LIMIT - anchor,
                anchor=anchor if reuse else None,
                tag=(job.tag, m),
            )
        ]

    first = [job(p) for p in range(jobs)]
    return run(params, first, after=after, temperature=temperature, rows=rows, **settings)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("rows", "fewest", "shards", "chunk"), [(32, 1, 1, 5), (32, 1, 2, LIMIT), (64, 10, 1, LIMIT)]
)
def test_a_response_that_takes_over_its_parents_keys_is_the_one_that_reads_them_again(
    params, temperature, rows, fewest, shards, chunk
):
    jobs = rows // 4
    settings = {"jobs": jobs, "temperature": temperature, "rows": rows, "fewest": fewest}
    settings |= {"shards": shards, "chunk": chunk}
    read, cost = cut_and_continue(params, reuse=False, **settings)
    taken, saved = cut_and_continue(params, reuse=True, **settings)
    assert taken.keys() == read.keys()
    for name, response in taken.items():
        np.testing.assert_array_equal(response.tokens, read[name].tokens)
        np.testing.assert_allclose(response.logprobs, read[name].logprobs, atol=2e-5)
    assert cost.reused_tokens == 0
    assert saved.read_tokens + saved.reused_tokens == cost.read_tokens
    prompts = PROMPTS.length[:jobs].sum()
    if fewest == 1:  # seats enough: no anchor was read
        assert saved.read_tokens == prompts
    else:
        assert saved.reused_tokens > 0
        assert saved.read_tokens > prompts


def test_scanned_layers_sample_what_unrolled_ones_do(params, whole, monkeypatch):
    unrolled, _ = cut_and_continue(params, reuse=True)
    monkeypatch.setattr(caches, "unrolled", lambda: False)
    jax.clear_caches()
    scanned, stats = cut_and_continue(params, reuse=True)
    jax.clear_caches()
    assert stats.reused_tokens > 0
    assert scanned.keys() == unrolled.keys()
    for name, response in scanned.items():
        np.testing.assert_array_equal(response.tokens, unrolled[name].tokens)
        np.testing.assert_allclose(response.logprobs, unrolled[name].logprobs, atol=2e-5)


@pytest.mark.parametrize("shards", [1, 2])
def test_rows_become_fewer_when_nothing_waits_and_samples_stay_as_they_are(
    params, whole, shards, monkeypatch
):
    monkeypatch.setattr(engine, "LARGE", 0)
    rows = 64
    ended, stats = run(params, map(job, range(P)), rows=rows, chunk=3, shards=shards)
    for (p, g), response in ended.items():
        assert_whole(response, whole, p, g)
    assert len(ended) == rows
    ideal = sum(
        next(size for size in (16, 32, 64) if size >= (whole.lengths > step).sum())
        for step in range(whole.lengths.max())
    )
    assert ideal < 0.9 * rows * whole.lengths.max()
    if shards == 1:
        assert stats.row_steps == ideal
    assert stats.row_steps <= ideal + 3 * 32 * 2  # looks are three steps apart


def test_a_small_model_decodes_its_last_rows_with_the_program_that_it_has(params, whole):
    ended, stats = run(params, map(job, range(P)), rows=64)
    assert len(ended) == 64
    assert stats.row_steps == 64 * whole.lengths.max()


@pytest.mark.parametrize("rows", [G, 12])
def test_prompts_are_read_in_full_batches_though_few_rows_become_free_at_a_time(
    params, watched, rows
):
    run(params, map(job, range(P)), rows=rows)
    assert [len(read) for read in watched.reads] == [READ_AT_ONCE] * (P // READ_AT_ONCE)


def test_jobs_of_one_member_keep_all_rows_busy(params, whole):
    ended, stats = run(params, [job(p, (0,)) for p in range(P)], rows=8)
    lengths = whole.lengths[:, 0]
    assert len(ended) == P
    assert stats.row_steps == 8 * end_of_last(lengths, 8)


@given(
    st.integers(1, 512),
    st.lists(st.integers(1, 8), min_size=2, max_size=2).map(sorted),
    st.sampled_from([1, 2, 4]),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_rows_and_seats_are_few_sizes_that_every_part_shares_alike(rows, members, shards, jobs):
    fewest, most = members
    table = engine.sizes(rows, most, fewest, shards, jobs)
    assert table.rows[0] - shards < rows <= table.rows[0]
    assert len(table.rows) <= 3
    assert all(size % shards == 0 for size in (*table.rows, table.seats))
    assert list(table.rows) == sorted(table.rows, reverse=True)
    if jobs is None or jobs * fewest >= rows:  # there are enough jobs to fill the rows
        assert table.seats * fewest >= min(table.rows[0], rows)
    assert [table.part(s) for p in range(shards) for s in table.seats_of(p)] == sorted(
        list(range(shards)) * (table.seats // shards)
    )
    for needed in range(1, table.rows[0] + 1):
        assert table.rows_for(needed) >= needed


def test_programs_are_as_many_as_shapes_whatever_the_lengths_and_sizes(params, whole):
    rows = decode.decode_on_cpu if caches.unrolled() else decode.decode
    programs = rows, decode.prefill, decode.insert, decode.start_rows
    before = [program._cache_size() for program in programs]
    rng = np.random.default_rng(3)
    for seed in range(12):
        short, long = make_prompts(4 + seed, SHORT, seed), make_prompts(seed % 4, LONG, seed)
        jobs = [
            Job(one(some, p), MATERNAL, range(G), int(rng.integers(1, LIMIT)), tag=(i, p))
            for i, some in enumerate((short, long))
            for p in range(len(some.length))
        ]
        # What there is room for at first follows from the largest limit.
        jobs[0] = replace(jobs[0], limit=LIMIT)
        run(params, [jobs[i] for i in rng.permutation(len(jobs))], temperature=seed % 3 / 2)
    decodes, reads, inserts, starts = (p._cache_size() - old for p, old in zip(programs, before))
    assert decodes <= 2  # the pool has room for short or for long prompts
    assert reads <= 2  # short or long ones
    assert inserts <= 3  # short ones into either pool, long ones
    assert starts <= 1


def test_a_limit_of_nothing_yields_nothing(params):
    ended, stats = run(params, [job(0, (0,), 0)])
    assert ended[0, 0].tokens.shape == ended[0, 0].logprobs.shape == (0,)
    assert not ended[0, 0].stopped
    assert stats.row_steps == 0


def test_without_jobs_nothing_is_done(params):
    ended, stats = run(params, [])
    assert not ended
    assert (stats.row_steps, stats.tokens, stats.read_tokens, stats.seconds) == (0, 0, 0, {})


STEMS, FOLLOW = 5, 3


def followed(with_stem, order=None):
    """Jobs that follow a few stems, each with a text of its own."""
    rng, jobs = np.random.default_rng(4), []
    for p in range(STEMS):
        stem = one(PROMPTS, p)
        for f in range(FOLLOW):
            text = rng.integers(0, 40, (1, int(rng.integers(1, 40))), np.int32)
            prompt = fork(stem, text, np.array([text.shape[1]]), 40)
            members = range(f * G, (f + 1) * G)
            kept = stem if with_stem else None
            jobs.append(Job(prompt, MATERNAL, members, LIMIT, stem=kept, tag=(p, f)))
    return jobs if order is None else [jobs[i] for i in order]


@pytest.mark.parametrize(
    ("rows", "shards", "shuffled"), [(1, 1, False), (2, 2, True), (8, 1, False), (8, 2, False)]
)
def test_what_follows_a_stem_is_sampled_as_if_its_prompt_had_been_read_whole(
    params, watched, rows, shards, shuffled
):
    apart, separate = run(params, followed(False), fewest=G)
    reads = sum(map(len, watched.reads))
    assert reads == STEMS * FOLLOW
    order = np.random.default_rng(1).permutation(STEMS * FOLLOW) if shuffled else None
    together, stats = run(params, followed(True, order), rows=rows, shards=shards, fewest=G)
    assert together.keys() == apart.keys()
    for name, response in together.items():
        np.testing.assert_array_equal(response.tokens, apart[name].tokens)
        np.testing.assert_allclose(response.logprobs, apart[name].logprobs, atol=2e-5)
    if shuffled:
        return
    again = sum(map(len, watched.reads)) - reads
    assert STEMS <= again <= STEMS * shards
    if shards == 1:  # every stem is read once, and every text
        lengths = PROMPTS.length[:STEMS]
        assert stats.read_tokens == separate.read_tokens - (FOLLOW - 1) * lengths.sum()
        assert stats.reused_tokens == FOLLOW * lengths.sum()
