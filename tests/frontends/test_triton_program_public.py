"""Kernels in the manner of public repositories, against PyTorch: attention over pages, mixtures of experts, products of
packed weights, recurrences and losses, with early returns, optional pointers, locks and atomics.
"""

from __future__ import annotations

import pytest
from tests.frontends.triton_programs import NEEDS_BLOCK_POINTERS, simulated, tl, torch, triton

pytestmark = pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")


@triton.jit
def rotary(q_ptr, cos_ptr, sin_ptr, seq_len, stride_row, stride_cos, n_heads: tl.constexpr, HALF: tl.constexpr,
           BACKWARD: tl.constexpr = False):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + (row % seq_len) * stride_cos + at)
    sin = tl.load(sin_ptr + (row % seq_len) * stride_cos + at)
    if BACKWARD:
        sin = -sin
    first = q_ptr + row * stride_row + head * HALF * 2 + at
    q1 = tl.load(first).to(tl.float32)
    q2 = tl.load(first + HALF).to(tl.float32)
    tl.store(first, q1 * cos - q2 * sin)
    tl.store(first + HALF, q2 * cos + q1 * sin)


def test_rotary_embedding_in_place_and_back():
    rows, heads, half = 12, 2, 16
    q = torch.randn(rows, heads, 2 * half).half()
    angle = torch.rand(6, half)
    cos, sin = angle.cos(), angle.sin()
    c, s = (each.repeat(2, 1)[:, None, :] for each in (cos, sin))
    a, b = q.float()[..., :half], q.float()[..., half:]
    expected, before = torch.cat((a * c - b * s, b * c + a * s), -1), q.clone()
    with simulated():
        for backward, wanted in ((False, expected), (True, before.float())):
            rotary[(rows, heads)](q, cos, sin, 6, q.stride(0), half, heads, half, BACKWARD=backward)
            torch.testing.assert_close(q.float(), wanted, atol=5e-3, rtol=5e-3)


@triton.jit
def paged_decode(out, q, k_cache, v_cache, block_tables, seq_lens, alibi, scale, max_blocks,
                 GROUP: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr):  # fmt: skip
    head, seq = tl.program_id(0), tl.program_id(1)
    heads = tl.num_programs(0)
    kv_head, kv_heads = head // GROUP, heads // GROUP
    length = tl.load(seq_lens + seq)
    d, at = tl.arange(0, D), tl.arange(0, PAGE)
    slope = 0.0 if alibi is None else tl.load(alibi + head)
    query = tl.load(q + (seq * heads + head) * D + d) * scale
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    acc = tl.zeros((D,), tl.float32)
    for page in range(tl.cdiv(length, PAGE)):
        block = tl.load(block_tables + seq * max_blocks + page)
        inside = page * PAGE + at < length
        place = ((block * PAGE + at[:, None]) * kv_heads + kv_head) * D + d[None, :]
        k = tl.load(k_cache + place, mask=inside[:, None], other=0.0)
        v = tl.load(v_cache + place, mask=inside[:, None], other=0.0)
        scores = tl.sum(query[None, :] * k, axis=1) + slope * (page * PAGE + at - length + 1)
        scores = tl.where(inside, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        p, change = tl.exp(scores - new_top), tl.exp(top - new_top)
        total = total * change + tl.sum(p, axis=0)
        acc = acc * change + tl.sum(p[:, None] * v, axis=0)
        top = new_top
    tl.store(out + (seq * heads + head) * D + d, acc / total)


@pytest.mark.parametrize("with_alibi", [False, True])
def test_paged_attention_with_lengths_from_memory(with_alibi):
    seqs, heads, group, page, d, blocks = 3, 4, 2, 8, 16, 10
    lengths = torch.tensor([5, 17, 24], dtype=torch.int32)
    tables = torch.randperm(blocks)[:9].view(3, 3).int()
    q = torch.randn(seqs, heads, d)
    k, v = torch.randn(blocks, page, heads // group, d), torch.randn(blocks, page, heads // group, d)
    alibi, out = (torch.rand(heads) if with_alibi else None), torch.empty(seqs, heads, d)
    with simulated():
        paged_decode[(heads, seqs)](out, q, k, v, tables, lengths, alibi, d**-0.5, 3, GROUP=group, PAGE=page, D=d)
    for seq, length in enumerate(lengths.tolist()):
        ks, vs = (each[tables[seq].long()].flatten(0, 1)[:length].repeat_interleave(group, 1) for each in (k, v))
        scores = torch.einsum("hd,nhd->hn", q[seq], ks) * d**-0.5
        if alibi is not None:
            scores += alibi[:, None] * (torch.arange(length) - length + 1)
        torch.testing.assert_close(out[seq], torch.einsum("hn,nhd->hd", scores.softmax(1), vs), atol=1e-4, rtol=1e-4)


@triton.jit
def fused_moe(a, b, c, weights, token_ids, expert_ids, padded, N, K, tokens, stride_be,
              M_BLOCK: tl.constexpr, N_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, top_k: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    across = tl.cdiv(N, N_BLOCK)
    pid_m, pid_n = pid // across, pid % across
    if pid_m * M_BLOCK >= tl.load(padded):
        return
    token = tl.load(token_ids + pid_m * M_BLOCK + tl.arange(0, M_BLOCK))
    live = token < tokens
    expert = tl.load(expert_ids + pid_m).to(tl.int64)
    columns, k = (pid_n * N_BLOCK + tl.arange(0, N_BLOCK)) % N, tl.arange(0, K_BLOCK)
    left = a + (token[:, None] // top_k * K + k[None, :])
    right = b + expert * stride_be + k[:, None] * N + columns[None, :]
    total = tl.zeros((M_BLOCK, N_BLOCK), dtype=tl.float32)
    for step in range(tl.cdiv(K, K_BLOCK)):
        inside = k < K - step * K_BLOCK
        x = tl.load(left, mask=live[:, None] & inside[None, :], other=0.0)
        total += tl.dot(x, tl.load(right, mask=inside[:, None], other=0.0))
        left += K_BLOCK
        right += K_BLOCK * N
    total = total * tl.load(weights + token, mask=live, other=0)[:, None]
    tl.store(c + token[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=live[:, None])


def test_a_mixture_of_experts_with_padded_and_empty_blocks():
    tokens, n, k, experts, top_k, block = 10, 32, 48, 3, 2, 16
    x, w = torch.randn(tokens, k).half(), torch.randn(experts, k, n).half() / 8
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    weights = torch.rand(tokens, top_k)
    ids, owners = [], []
    for expert in range(experts):
        mine = (chosen.flatten() == expert).nonzero().flatten().tolist()
        mine += [tokens * top_k] * (-len(mine) % block)
        ids += mine
        owners += [expert] * (len(mine) // block)
    sorted_ids = torch.tensor(ids + [tokens * top_k] * 2 * block, dtype=torch.int32)
    out = torch.zeros(tokens * top_k, n).half()
    with simulated():
        fused_moe[(len(sorted_ids) // block * 2,)](
            x, w, out, weights, sorted_ids, torch.tensor([*owners, 0, 0], dtype=torch.int32),
            torch.tensor([len(ids)], dtype=torch.int32), n, k, tokens * top_k, w.stride(0), block, 16, 32, top_k,
        )  # fmt: skip
    expected = torch.stack([x[t].float() @ w[e].float() for t in range(tokens) for e in chosen[t]])
    torch.testing.assert_close(out.float(), expected * weights.flatten()[:, None], atol=2e-2, rtol=2e-2)


@triton.jit
def int4_product(a, packed, scales, zeros, c, M, N, K, group, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 SPLIT_K: tl.constexpr):  # fmt: skip
    pid_m, pid_n, pid_k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, n = pid_m * BM + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    k = pid_k * BK + tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(pid_k * BK, K, BK * SPLIT_K):
        x = tl.load(a + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
        word = tl.load(packed + (k[:, None] // 8) * N + n[None, :])
        at = step // group
        zero = (tl.load(zeros + at * (N // 8) + n // 8) >> ((n % 8) * 4)) & 0xF
        weight = ((word >> ((k % 8) * 4)[:, None]) & 0xF) - zero[None, :]
        weight = weight.to(tl.float16) * tl.load(scales + at * N + n)[None, :]
        total = tl.dot(x, weight, total)
        k += BK * SPLIT_K
    tl.atomic_add(c + m[:, None] * N + n[None, :], total, mask=m[:, None] < M, sem="relaxed")


def test_packed_weights_of_4_bits_in_a_product_that_splits_k():
    m, n, k, group = 20, 32, 64, 32
    x, scales = torch.randn(m, k).half(), (torch.rand(k // group, n) / 8).half()
    q, z = torch.randint(0, 16, (k, n)), torch.randint(0, 16, (k // group, n))

    def pack(values, dim):
        parts = values.movedim(dim, -1).unflatten(-1, (-1, 8)) << (torch.arange(8) * 4)
        words = parts.sum(-1)
        return torch.where(words >= 2**31, words - 2**32, words).int().movedim(-1, dim).contiguous()

    out = torch.zeros(m, n)
    with simulated():
        int4_product[(2, 2, 2)](x, pack(q, 0), scales, pack(z, 1), out, m, n, k, group, 16, 16, 16, SPLIT_K=2)
    weight = (q - z.repeat_interleave(group, 0)) * scales.float().repeat_interleave(group, 0)
    torch.testing.assert_close(out, x.float() @ weight, atol=5e-2, rtol=2e-2)


@triton.heuristics({"HAS_D": lambda args: args["D"] is not None, "HAS_Z": lambda args: args["z"] is not None})
@triton.jit
def state_update(state, x, dt, A, B, C, D, z, out, dim, dstate, SOFTPLUS: tl.constexpr, BLOCK: tl.constexpr,
                 N: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr):  # fmt: skip
    batch = tl.program_id(1)
    m, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, N)
    mask = (m[:, None] < dim) & (n[None, :] < dstate)
    place = state + batch * dim * dstate + m[:, None] * dstate + n[None, :]
    xs = tl.load(x + batch * dim + m, mask=m < dim, other=0.0).to(tl.float32)
    step = tl.load(dt + batch * dim + m, mask=m < dim, other=0.0).to(tl.float32)
    if SOFTPLUS:
        step = tl.where(step <= 20.0, tl.math.log(tl.math.exp(step) + 1), step)
    decay = tl.exp(tl.load(A + m[:, None] * dstate + n[None, :], mask=mask, other=0.0) * step[:, None])
    b = tl.load(B + batch * dstate + n, mask=n < dstate, other=0.0)
    c = tl.load(C + batch * dstate + n, mask=n < dstate, other=0.0)
    new = tl.load(place, mask=mask, other=0.0) * decay + b[None, :] * step[:, None] * xs[:, None]
    tl.store(place, new, mask=mask)
    y = tl.sum(new * c[None, :], axis=1)
    if HAS_D:
        y += xs * tl.load(D + m, mask=m < dim, other=0.0)
    if HAS_Z:
        gate = tl.load(z + batch * dim + m, mask=m < dim, other=0.0)
        y *= gate * tl.sigmoid(gate)
    tl.store(out + batch * dim + m, y, mask=m < dim)


@pytest.mark.parametrize("optional", [False, True])
def test_a_selective_state_update_with_optional_tensors(optional):
    batch, dim, n = 2, 40, 12
    state, x, dt = torch.randn(batch, dim, n), torch.randn(batch, dim), torch.randn(batch, dim)
    a, b, c = -torch.rand(dim, n), torch.randn(batch, n), torch.randn(batch, n)
    d, z = (torch.randn(dim), torch.randn(batch, dim)) if optional else (None, None)
    step = torch.nn.functional.softplus(dt)
    new = state * torch.exp(a * step[..., None]) + b[:, None, :] * (step * x)[..., None]
    y = (new * c[:, None, :]).sum(-1)
    if optional:
        y = (y + x * d) * torch.nn.functional.silu(z)
    out = torch.empty(batch, dim)
    with simulated():
        state_update[(3, batch)](state, x, dt, a, b, c, d, z, out, dim, n, SOFTPLUS=True, BLOCK=16, N=16)
    torch.testing.assert_close(state, new, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out, y, atol=1e-4, rtol=1e-4)


@triton.jit
def recur(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def linear_recurrence(a, b, out, T, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    row = tl.program_id(0)
    carry = tl.zeros((), tl.float32)
    for chunk in range(0, T, BLOCK):
        at = chunk + tl.arange(0, BLOCK)
        at = T - 1 - at if REVERSE else at
        decay, value = tl.load(a + row * T + at), tl.load(b + row * T + at)
        decays, values = tl.associative_scan((decay, value), 0, recur)
        values += decays * carry
        tl.store(out + row * T + at, values)
        carry = tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, values, 0.0), axis=0)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence_in_chunks(reverse):
    a, b, out = torch.rand(5, 64), torch.randn(5, 64), torch.empty(5, 64)
    with simulated():
        linear_recurrence[(5,)](a, b, out, 64, BLOCK=16, REVERSE=reverse)
    expected, state = torch.empty_like(b), torch.zeros(5)
    for at in reversed(range(64)) if reverse else range(64):
        state = a[:, at] * state + b[:, at]
        expected[:, at] = state
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@triton.jit
def cross_entropy(logits, stride, labels, loss, lse, V, ignored, CHUNK: tl.constexpr, SOFTCAP: tl.constexpr):
    """The loss, and its gradient in place of the logits."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    label = tl.load(labels + row).to(tl.int32)
    if label == ignored:
        for at in range(0, V, CHUNK):
            columns = at + tl.arange(0, CHUNK)
            tl.store(logits + columns, 0.0, mask=columns < V)
        return
    top, total = float("-inf"), 0.0
    for at in range(0, V, CHUNK):
        columns = at + tl.arange(0, CHUNK)
        x = tl.load(logits + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
        if SOFTCAP:
            x = tl.where(columns < V, SOFTCAP * tl.extra.libdevice.tanh(x / SOFTCAP), float("-inf"))
        new = tl.maximum(top, tl.max(x))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new))
        top = new
    at_label = tl.load(logits + label).to(tl.float32)
    if SOFTCAP:
        at_label = SOFTCAP * tl.extra.libdevice.tanh(at_label / SOFTCAP)
    sum_log = top + tl.log(total)
    tl.store(lse + row, sum_log)
    tl.store(loss + row, sum_log - at_label)
    for at in range(0, V, CHUNK):
        columns = at + tl.arange(0, CHUNK)
        x = tl.load(logits + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
        slope = 1.0
        if SOFTCAP:
            bent = tl.extra.libdevice.tanh(x / SOFTCAP)
            x, slope = SOFTCAP * bent, 1 - bent * bent
        tl.store(logits + columns, (tl.exp(x - sum_log) - (columns == label)) * slope, mask=columns < V)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_a_cross_entropy_in_chunks_with_ignored_labels(softcap):
    x, labels = torch.randn(4, 50, requires_grad=True), torch.tensor([3, -100, 49, 0])
    bent = softcap * torch.tanh(x / softcap) if softcap else x
    expected = torch.nn.functional.cross_entropy(bent, labels, ignore_index=-100, reduction="none")
    expected.sum().backward()
    found, loss = x.detach().clone(), torch.zeros(4)
    with simulated():
        cross_entropy[(4,)](found, found.stride(0), labels, loss, torch.empty(4), 50, -100, CHUNK=16, SOFTCAP=softcap)
    torch.testing.assert_close(loss, expected.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found, x.grad, atol=1e-4, rtol=1e-4)


@triton.jit
def chunked_linear_attention(q, k, v, o, s_qh, s_qt, s_qd, scale, T, D: tl.constexpr, BT: tl.constexpr):
    head = tl.program_id(0)
    state = tl.zeros((D, D), dtype=tl.float32)
    causal = tl.arange(0, BT)[:, None] >= tl.arange(0, BT)[None, :]
    for chunk in range(tl.cdiv(T, BT)):
        p_q = tl.make_block_ptr(q + head * s_qh, (T, D), (s_qt, s_qd), (chunk * BT, 0), (BT, D), (1, 0))
        p_k = tl.make_block_ptr(k + head * s_qh, (D, T), (s_qd, s_qt), (0, chunk * BT), (D, BT), (0, 1))
        p_v = tl.make_block_ptr(v + head * s_qh, (T, D), (s_qt, s_qd), (chunk * BT, 0), (BT, D), (1, 0))
        p_o = tl.make_block_ptr(o + head * s_qh, (T, D), (s_qt, s_qd), (chunk * BT, 0), (BT, D), (1, 0))
        b_q = tl.load(p_q, boundary_check=(0, 1)) * scale
        b_k, b_v = tl.load(p_k, boundary_check=(0, 1)), tl.load(p_v, boundary_check=(0, 1))
        inside = tl.where(causal, tl.dot(b_q, b_k, allow_tf32=False), 0.0)
        b_o = tl.dot(b_q, state, allow_tf32=False) + tl.dot(inside, b_v, allow_tf32=False)
        state += tl.dot(b_k, b_v, allow_tf32=False)
        tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))


@NEEDS_BLOCK_POINTERS
def test_linear_attention_in_chunks_with_a_ragged_end():
    heads, t, d = 3, 40, 16
    q, k, v = (torch.randn(heads, t, d) for _ in range(3))
    out = torch.empty_like(q)
    with simulated():
        chunked_linear_attention[(heads,)](q, k, v, out, *q.stride(), 0.25, t, D=d, BT=16)
    expected = torch.tril(q @ k.transpose(1, 2) * 0.25) @ v
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)


@triton.jit
def grouped(pointers, sizes, groups, WORKERS: tl.constexpr, B: tl.constexpr):
    """Products of several sizes, whose operands' addresses are in memory, by descriptors made on the device."""
    tile, first = tl.program_id(0), 0
    for group in range(groups):
        m, n, k = tl.load(sizes + group * 3), tl.load(sizes + group * 3 + 1), tl.load(sizes + group * 3 + 2)
        across = tl.cdiv(n, B)
        tiles = tl.cdiv(m, B) * across
        if tile >= first and tile < first + tiles:
            kind = tl.pointer_type(tl.float16)
            a = tl.make_tensor_descriptor(tl.load(pointers + group * 3).to(kind), [m, k], [k, 1], [B, B])
            b = tl.make_tensor_descriptor(tl.load(pointers + group * 3 + 1).to(kind), [k, n], [n, 1], [B, B])
            c = tl.make_tensor_descriptor(tl.load(pointers + group * 3 + 2).to(kind), [m, n], [n, 1], [B, B])
            while tile >= first and tile < first + tiles:
                row, column = (tile - first) // across * B, (tile - first) % across * B
                total = tl.zeros((B, B), tl.float32)
                for at in range(0, k, B):
                    total = tl.dot(a.load([row, at]), b.load([at, column]), total)
                c.store([row, column], total.to(tl.float16))
                tile += WORKERS
        first += tiles


def test_grouped_products_with_descriptors_made_on_the_device():
    shapes = [(32, 16, 48), (16, 40, 32), (48, 24, 16)]
    a, b = ([torch.randn(shape[i], shape[j]).half() for shape in shapes] for i, j in ((0, 2), (2, 1)))
    c = [torch.zeros(m, n).half() for m, n, _ in shapes]
    with simulated():  # where addresses are asked for: tensors are known by them
        pointers = torch.tensor([each.data_ptr() for group in zip(a, b, c, strict=True) for each in group])
        grouped[(4,)](pointers, torch.tensor(shapes, dtype=torch.int32).flatten(), 3, WORKERS=4, B=16)
    for x, y, found in zip(a, b, c, strict=True):
        torch.testing.assert_close(found.float(), x.float() @ y.float(), atol=3e-2, rtol=3e-2)


@triton.jit
def stream_k(a, b, c, locks, N, K, steps_per_program, steps, B: tl.constexpr):
    """Programs take equal parts of all steps of all tiles; those that share a tile add under its lock."""
    start = tl.program_id(0) * steps_per_program
    last = tl.minimum(start + steps_per_program, steps)
    at = tl.arange(0, B)
    per_tile = tl.cdiv(K, B)
    while start < last:
        tile = start // per_tile
        end = tl.minimum(last, (tile + 1) * per_tile)
        row, column = tile // tl.cdiv(N, B) * B + at, tile % tl.cdiv(N, B) * B + at
        total = tl.zeros((B, B), tl.float32)
        for step in range(start, end):
            k = step % per_tile * B + at
            total = tl.dot(
                tl.load(a + row[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + column[None, :]), total
            )
        place = c + row[:, None] * N + column[None, :]
        while tl.atomic_cas(locks + tile, 0, 1) == 1:
            pass
        tl.store(place, tl.load(place) + total)
        tl.atomic_xchg(locks + tile, 0)
        start = end


def test_stream_k_with_a_lock_for_each_tile():
    a, b, c = torch.randn(32, 48).half(), torch.randn(48, 32).half(), torch.zeros(32, 32)
    steps = 2 * 2 * 3  # tiles of 16 x 16, 3 steps each, over 5 programs of 3 steps: two tiles are shared
    with simulated(check_races=True) as sim:
        stream_k[(5,)](a, b, c, torch.zeros(4, dtype=torch.int32), 32, 48, 3, steps, B=16)
    torch.testing.assert_close(c, a.float() @ b.float(), atol=2e-2, rtol=2e-2)
    assert sim.result.races == []


@triton.jit
def top_k(x, values, places, N, K: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    left = tl.load(x + row * N + at, mask=at < N, other=float("-inf"))
    for k in tl.static_range(K):
        best, where = tl.max(left, axis=0, return_indices=True)
        tl.store(values + row * K + k, best)
        tl.store(places + row * K + k, where)
        left = tl.where(at == where, float("-inf"), left)


def test_the_largest_of_a_row_one_after_the_other():
    x, values, places = torch.randn(6, 20), torch.empty(6, 3), torch.empty(6, 3, dtype=torch.int64)
    with simulated():
        top_k[(6,)](x, values, places, 20, K=3, BLOCK=32)
    expected = x.topk(3)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)
