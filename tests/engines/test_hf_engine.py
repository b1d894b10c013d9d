from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from engine_helpers import (
    CHARACTERS,
    EOS,
    PAD,
    TinyPolicy,
    byte_tokenizer,
    character_tokenizer,
    full_logprobs,
    policy_of,
    tiny_config,
)
from torch import Tensor

from roll_lightning.engines.base import Completion, Request, SamplingParams, derive_seed
from roll_lightning.engines.hf import HFEngine
from roll_lightning.errors import ConfigError, EngineError

PLAIN = SamplingParams(max_new_tokens=12)


def engine_of(policy: TinyPolicy, max_batch_size: int = 256, compact_fraction: float = 0.125) -> HFEngine:
    engine = HFEngine(max_batch_size, compact_fraction)
    engine.bind(policy, character_tokenizer())
    return engine


def ragged_prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(2, 40) for _ in range(rng.randrange(1, 15))) for _ in range(count)]


def grouped(prompts: list[tuple[int, ...]], samples: int, params: SamplingParams = PLAIN) -> list[Request]:
    return [
        Request(prompt, params, derive_seed(0, group, sample), group)
        for group, prompt in enumerate(prompts)
        for sample in range(samples)
    ]


def mixed(count: int) -> list[Request]:
    """Requests whose parameters, prompts and lengths all differ."""
    choices = [
        SamplingParams(20, stop_token_ids=(5, 9, 11)),
        SamplingParams(3, temperature=0.5),
        SamplingParams(11, temperature=1.5, top_p=0.8, stop_token_ids=(EOS,)),
        SamplingParams(17, top_k=5, stop=("ab", "z")),
        SamplingParams(1, temperature=0.0),
        SamplingParams(15, temperature=0.0, stop_token_ids=(7,)),
    ]
    requests = []
    for group, prompt in enumerate(ragged_prompts(count)):
        for sample in range(1 + group % 4):
            requests.append(Request(prompt, choices[(group + sample) % 6], derive_seed(1, group, sample), group))
    return requests


def same_result(one: Completion, other: Completion) -> bool:
    return (
        one.token_ids == other.token_ids
        and one.text == other.text
        and one.finish_reason == other.finish_reason
        and torch.allclose(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-5)
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen2", {}),
        ("llama", {}),
        ("mistral", {"sliding_window": 4}),
        ("qwen2", {"attn_implementation": "eager"}),
    ],
)
def test_greedy_equals_transformers_generate_with_ragged_prompts(name: str, changes: dict) -> None:
    policy = policy_of(tiny_config(name, **changes))
    prompts = ragged_prompts(20)
    params = SamplingParams(25, temperature=0.0, stop_token_ids=(EOS, 30))
    answers = engine_of(policy, max_batch_size=7).generate(grouped(prompts, 1, params))
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = policy.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=25,
            eos_token_id=[EOS, 30],
            pad_token_id=PAD,
        )
        assert answer.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("max_batch_size", [1, 3, 16, 256])
@pytest.mark.parametrize("compact_fraction", [0.0, 0.125, 1.0])
def test_batch_size_and_order_change_nothing(max_batch_size: int, compact_fraction: float) -> None:
    policy = policy_of(tiny_config())
    requests = mixed(30)
    alone = [engine_of(policy).generate([request])[0] for request in requests]
    shuffled = list(range(len(requests)))
    random.Random(max_batch_size).shuffle(shuffled)
    answers = engine_of(policy, max_batch_size, compact_fraction).generate([requests[i] for i in shuffled])
    assert all(same_result(alone[i], answer) for i, answer in zip(shuffled, answers, strict=True))
    assert {answer.finish_reason for answer in alone} == {"stop", "length"}


def test_group_sharing_changes_nothing_but_the_work() -> None:
    policy = policy_of(tiny_config())
    prompts = ragged_prompts(6)
    shared = grouped(prompts, 8)
    answers = engine_of(policy).generate(shared)
    assert policy.shapes[0] == (6, max(map(len, prompts)))
    assert policy.shapes[1] == (48, 1)
    policy.shapes.clear()
    apart = [replace(request, group=number) for number, request in enumerate(shared)]
    again = engine_of(policy).generate(apart)
    assert policy.shapes[0][0] == 48
    assert all(map(same_result, answers, again))
    assert len({tuple(answer.token_ids) for answer in answers}) == 48


@pytest.mark.parametrize("max_batch_size", [1, 3, 5, 8, 20])
def test_a_groups_prompt_is_computed_once_however_its_members_enter(max_batch_size: int) -> None:
    policy = policy_of(tiny_config())
    prompts = [prompt * 2 for prompt in ragged_prompts(7)]
    requests = grouped(prompts, 8, SamplingParams(6, stop_token_ids=tuple(range(2, 8))))
    random.Random(0).shuffle(requests)
    engine_of(policy, max_batch_size).generate(requests)
    assert sum(rows for rows, width in policy.shapes if width > 1) == 7
    assert max(rows for rows, _ in policy.shapes) <= max_batch_size


def test_different_prompts_under_one_group_number_stay_apart() -> None:
    policy = policy_of(tiny_config())
    requests = [replace(request, group=0) for request in grouped(ragged_prompts(5), 2)]
    answers = engine_of(policy).generate(requests)
    assert all(same_result(engine_of(policy).generate([r])[0], a) for r, a in zip(requests, answers, strict=True))


def test_finished_rows_leave_and_waiting_ones_enter() -> None:
    policy = policy_of(tiny_config())
    limits = [2, 9, 2, 9, 2, 9, 2, 9]
    requests = [
        Request(prompt, SamplingParams(limit), 0, group)
        for group, (prompt, limit) in enumerate(zip([(5, 6, 7)] * 8, limits, strict=True))
    ]
    engine_of(policy, max_batch_size=4).generate(requests)
    # A batch of four; its two short rows are replaced at once, and so on: never a row too many, never one idle.
    decoded = sum(rows for rows, width in policy.shapes if width == 1)
    assert decoded == sum(limit - 1 for limit in limits)
    assert max(rows for rows, _ in policy.shapes) == 4


def test_a_stop_token_drawn_after_the_end_of_a_row_does_not_count() -> None:
    # Rows stay in the batch after their limit, and go on drawing: 30 more tokens, stop tokens among them.
    policy = policy_of(tiny_config())
    requests = [
        Request(
            (3, 4), SamplingParams(40 if group == 0 else 2, stop_token_ids=() if group == 0 else (5, 6, 7, 8)), 0, group
        )
        for group in range(20)
    ]
    requests = [replace(request, seed=group) for group, request in enumerate(requests)]
    answers = engine_of(policy, compact_fraction=1.0).generate(requests)
    for answer in answers[1:]:
        assert answer.finish_reason == ("stop" if answer.token_ids[-1] in (5, 6, 7, 8) else "length")
    assert sum(answer.finish_reason == "length" for answer in answers) > 10


def test_padding_columns_of_the_cache_are_trimmed() -> None:
    policy = policy_of(tiny_config())
    widths = []
    decode = policy.decode

    def recording(ids: Tensor, mask: Tensor, positions: Tensor, cache: object) -> Tensor:
        assert (mask.sum(dim=1) == positions[:, -1] + 1).all()
        widths.append((mask.shape[1], int(mask.sum(dim=1).max())))
        return decode(ids, mask, positions, cache)

    policy.decode = recording  # type: ignore[method-assign]
    long, short = tuple(range(2, 32)), (3, 4)
    requests = [Request(long, SamplingParams(2), 0, 0), Request(short, SamplingParams(10), 1, 1)]
    engine_of(policy).generate(requests)
    assert all(width == longest for width, longest in widths)
    assert widths[-1][0] == 2 + 9


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_T22_logprobs_equal_the_trainers_at_each_temperature(
    temperature: float, dtype: torch.dtype, tolerance: float
) -> None:
    policy = policy_of(tiny_config(initializer_range=0.1)).to(dtype)
    requests = grouped(ragged_prompts(10), 4, SamplingParams(20, temperature=temperature, stop_token_ids=(EOS,)))
    for request, answer in zip(requests, engine_of(policy, 17).generate(requests), strict=True):
        expected = full_logprobs(policy, request.prompt_token_ids, answer.token_ids, temperature)
        assert torch.allclose(torch.tensor(answer.logprobs), expected, rtol=0, atol=tolerance)


def test_T23_top_p_logprobs_are_renormalised() -> None:
    policy = policy_of(tiny_config())
    requests = grouped(ragged_prompts(5), 4, SamplingParams(8, top_p=0.8))
    for request, answer in zip(requests, engine_of(policy).generate(requests), strict=True):
        sequence = [*request.prompt_token_ids, *answer.token_ids]
        with torch.no_grad():
            rows = policy.model(torch.tensor([sequence])).logits[0].double().softmax(-1)
        for at, (token, logprob) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
            probabilities = rows[len(request.prompt_token_ids) - 1 + at].tolist()
            kept: list[float] = []
            for probability in sorted(probabilities, reverse=True):
                if sum(kept) >= 0.8:
                    break
                kept.append(probability)
            assert probabilities[token] >= kept[-1]
            assert logprob == pytest.approx(float(torch.tensor(probabilities[token] / sum(kept)).log()), abs=2e-5)


def test_greedy_logprobs_are_those_of_temperature_one() -> None:
    policy = policy_of(tiny_config())
    requests = grouped(ragged_prompts(4), 1, SamplingParams(10, temperature=0.0))
    for request, answer in zip(requests, engine_of(policy).generate(requests), strict=True):
        expected = full_logprobs(policy, request.prompt_token_ids, answer.token_ids, 1.0)
        assert torch.allclose(torch.tensor(answer.logprobs), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_frequencies_of_two_tokens_equal_the_policys_probabilities(temperature: float) -> None:
    policy = policy_of(tiny_config(initializer_range=0.1))
    prompt, samples = (4, 8, 15), 20_000
    params = SamplingParams(2, temperature=temperature)
    requests = [Request(prompt, params, derive_seed(5, sample), 0) for sample in range(samples)]
    answers = engine_of(policy, max_batch_size=5000).generate(requests)
    vocabulary = policy.config.vocab_size
    with torch.no_grad():
        first = policy.model(torch.tensor([prompt])).logits[0, -1].double().div(temperature).softmax(-1)
        pairs = torch.tensor([[*prompt, token] for token in range(vocabulary)])
        second = policy.model(pairs).logits[:, -1].double().div(temperature).softmax(-1)
    expected = (first[:, None] * second).flatten() * samples
    drawn = torch.tensor([a.token_ids[0] * vocabulary + a.token_ids[1] for a in answers])
    counts = drawn.bincount(minlength=vocabulary**2).double()
    often = expected >= 5
    observed = torch.cat([counts[often], counts[~often].sum()[None]])
    wanted = torch.cat([expected[often], expected[~often].sum()[None]])
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    assert float(torch.special.gammaincc(torch.tensor(len(wanted) - 1) / 2, statistic / 2)) > 1e-3


def test_a_longer_limit_only_continues_the_response() -> None:
    policy = policy_of(tiny_config())
    short = engine_of(policy).generate(grouped(ragged_prompts(5), 2, SamplingParams(4)))
    long = engine_of(policy).generate(grouped(ragged_prompts(5), 2, SamplingParams(40)))
    assert all(a.token_ids == b.token_ids[:4] for a, b in zip(short, long, strict=True))


def test_stop_tokens_stay_and_name_the_reason() -> None:
    policy = policy_of(tiny_config())
    free = engine_of(policy).generate(grouped(ragged_prompts(10), 4, SamplingParams(30)))
    stops = (4, 7, EOS)
    cut = engine_of(policy).generate(grouped(ragged_prompts(10), 4, SamplingParams(30, stop_token_ids=stops)))
    for long, answer in zip(free, cut, strict=True):
        end = next((at + 1 for at, token in enumerate(long.token_ids) if token in stops), None)
        assert answer.token_ids == long.token_ids[:end]
        assert answer.finish_reason == ("length" if end is None else "stop")
        assert len(answer.logprobs) == len(answer.token_ids)
        # The text leaves special tokens out, but not an ordinary token that stops.
        visible = [token for token in answer.token_ids if token not in (PAD, EOS)]
        assert answer.text == "".join(CHARACTERS[token - 2] for token in visible)
    assert {answer.finish_reason for answer in cut} == {"stop", "length"}


def test_a_stop_at_the_last_allowed_token_is_a_stop() -> None:
    policy = policy_of(tiny_config())
    first = engine_of(policy).generate([Request((3, 4), SamplingParams(1), 0, 0)])[0]
    assert first.finish_reason == "length"
    params = SamplingParams(1, stop_token_ids=(first.token_ids[0],))
    assert engine_of(policy).generate([Request((3, 4), params, 0, 0)])[0].finish_reason == "stop"


def test_stop_strings_end_the_response_and_are_cut_from_the_text() -> None:
    policy = policy_of(tiny_config(vocab_size=len(byte_tokenizer())))
    tokenizer = byte_tokenizer()
    engine = HFEngine()
    engine.bind(policy, tokenizer)
    requests = grouped(ragged_prompts(8), 2, SamplingParams(30))
    for request, free in zip(requests, engine.generate(requests), strict=True):
        text = free.text.rstrip("\ufffd")
        stop = next(text[at : at + 3] for at in range(8, 40) if "\ufffd" not in text[at : at + 3])
        params = SamplingParams(30, stop=("never in it", stop))
        answer = engine.generate([replace(request, params=params)])[0]
        assert answer.finish_reason == "stop"
        assert answer.token_ids == free.token_ids[: len(answer.token_ids)]
        assert stop in tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        assert stop not in tokenizer.decode(answer.token_ids[:-1], skip_special_tokens=True)
        assert answer.text == free.text[: free.text.find(stop)]


def test_T30_tokens_are_returned_as_drawn_never_encoded_again() -> None:
    tokenizer = byte_tokenizer()
    policy = policy_of(tiny_config(vocab_size=len(tokenizer)))
    engine = HFEngine()
    engine.bind(policy, tokenizer)
    requests = grouped(ragged_prompts(10), 4, SamplingParams(30))
    answers = engine.generate(requests)
    again = [tokenizer.encode(answer.text, add_special_tokens=False) for answer in answers]
    assert any(ids != answer.token_ids for ids, answer in zip(again, answers, strict=True))
    for request, answer in zip(requests, answers, strict=True):
        expected = full_logprobs(policy, request.prompt_token_ids, answer.token_ids, 1.0)
        assert torch.allclose(torch.tensor(answer.logprobs), expected, rtol=0, atol=1e-5)


def test_T32_pad_equal_to_eos_breaks_nothing() -> None:
    policy = policy_of(tiny_config(pad_token_id=EOS))
    tokenizer = character_tokenizer()
    tokenizer.pad_token = "<eos>"
    engine = HFEngine(max_batch_size=3)
    engine.bind(policy, tokenizer)
    # Prompts that hold the end token, and tokens 0, which the engine writes into padding.
    prompts = [(EOS, EOS, 5), (7,), (0, 0, EOS, 9, EOS), (EOS,), (0,)]
    params = SamplingParams(25, stop_token_ids=(EOS, 0))
    requests = grouped(prompts, 4, params)
    answers = engine.generate(requests)
    for request, answer in zip(requests, answers, strict=True):
        assert not {EOS, 0}.intersection(answer.token_ids[:-1])
        assert (answer.finish_reason == "stop") == (answer.token_ids[-1] in (EOS, 0))
        expected = full_logprobs(policy, request.prompt_token_ids, answer.token_ids, 1.0)
        assert torch.allclose(torch.tensor(answer.logprobs), expected, rtol=0, atol=1e-5)


def test_eval_mode_inside_and_each_modules_own_mode_after() -> None:
    policy = policy_of(tiny_config(attention_dropout=0.5)).train()
    policy.model.model.layers[1].eval()
    policy.model.gradient_checkpointing_enable()
    modes = [module.training for module in policy.modules()]
    assert len(set(modes)) == 2
    answers = engine_of(policy).generate(grouped(ragged_prompts(3), 2))
    assert not any(policy.modes)
    assert [module.training for module in policy.modules()] == modes
    assert all(parameter.grad is None for parameter in policy.parameters())
    again = engine_of(policy_of(tiny_config())).generate(grouped(ragged_prompts(3), 2))
    assert all(map(same_result, answers, again))


def test_modes_are_restored_after_an_exception() -> None:
    policy = policy_of(tiny_config()).train()
    with torch.no_grad():
        policy.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(EngineError, match="request 0: the policy's logits are not finite"):
        engine_of(policy).generate(grouped([(3, 4)], 1))
    assert policy.training
    assert torch.is_grad_enabled()


def test_logits_that_are_not_finite_name_the_request() -> None:
    policy = policy_of(tiny_config())
    with torch.no_grad():
        policy.model.model.embed_tokens.weight[33] = torch.nan
    requests = grouped([(3, 4), (5,), (6, 33), (7,)], 2)
    with pytest.raises(EngineError, match=r"^request 4: "):
        engine_of(policy).generate(requests)


def test_global_random_state_is_neither_used_nor_changed() -> None:
    policy = policy_of(tiny_config())
    engine, requests = engine_of(policy), mixed(10)
    torch.manual_seed(1)
    random.seed(1)
    states = torch.get_rng_state(), random.getstate()
    first = engine.generate(requests)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    torch.manual_seed(2)
    random.seed(2)
    assert engine.generate(requests) == first


def test_weights_are_the_policys_own_and_travel_nowhere() -> None:
    policy = policy_of(tiny_config())
    engine, requests = engine_of(policy), grouped(ragged_prompts(4), 2)
    assert engine.version == -1

    def unread() -> Iterator[tuple[str, Tensor]]:
        raise AssertionError("no tensor need be read")
        yield

    receipt = engine.update_weights(unread(), version=3)
    assert (receipt.version, receipt.tensors, receipt.bytes) == (3, 0, 0)
    before = engine.generate(requests)
    assert {answer.weight_version for answer in before} == {(3, 3)}
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(-1)
    after = engine.generate(requests)
    assert all(a.token_ids != b.token_ids for a, b in zip(before, after, strict=True))


def test_prompts_at_and_beyond_the_last_position() -> None:
    from transformers import GPT2Config

    # Learned positions: a row that stands one too far would fail in the embedding.
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=16, bos_token_id=None)
    policy = policy_of(config)
    engine = engine_of(policy, compact_fraction=1.0)
    requests = [Request(tuple(range(2, 12)), SamplingParams(6), 0, 0), Request((3,), SamplingParams(15), 1, 1)]
    answers = engine.generate(requests)
    assert [len(answer.token_ids) for answer in answers] == [6, 15]
    for request, answer in zip(requests, answers, strict=True):
        expected = full_logprobs(policy, request.prompt_token_ids, answer.token_ids, 1.0)
        assert torch.allclose(torch.tensor(answer.logprobs), expected, rtol=0, atol=1e-5)
    with pytest.raises(
        ConfigError, match=r"request 1: a prompt of 10 .* max_new_tokens 7 make 17, .* has 16 positions"
    ):
        engine.generate([requests[0], replace(requests[0], params=SamplingParams(7))])


def test_requests_are_checked_before_any_forward() -> None:
    policy = policy_of(tiny_config())
    good = Request((3,), PLAIN, 0, 0)
    for bad, message in [
        (replace(good, prompt_token_ids=()), "request 1 has an empty prompt"),
        (replace(good, prompt_token_ids=(3, 40)), "request 1: .* token id outside 0 to 39"),
    ]:
        with pytest.raises(ConfigError, match=message):
            engine_of(policy).generate([good, bad])
    assert policy.shapes == []
    with pytest.raises(EngineError, match="before bind"):
        HFEngine().generate([good])
    assert engine_of(policy).generate([]) == []


def test_models_without_a_plain_cache_are_refused_by_name() -> None:
    from transformers import MambaConfig, Qwen3NextConfig, T5Config

    for config, name in [
        (MambaConfig(num_hidden_layers=1), "'mamba' keeps LinearAttentionLayer"),
        (Qwen3NextConfig(num_hidden_layers=4), "'qwen3_next' keeps LinearAttentionLayer"),
        (T5Config(), "'t5' is an encoder-decoder"),
    ]:
        policy = policy_of(tiny_config())
        policy.config = config
        with pytest.raises(EngineError, match=name):
            HFEngine().bind(policy, character_tokenizer())


def test_a_policy_that_leaves_the_cache_empty_is_refused() -> None:
    policy = policy_of(tiny_config())
    decode = policy.decode
    policy.decode = lambda ids, mask, positions, cache: decode(ids, mask, positions, None)  # type: ignore
    with pytest.raises(EngineError, match="'qwen2' filled its KV cache with nothing"):
        engine_of(policy).generate([Request((3, 4), PLAIN, 0, 0)])


def test_knobs_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_batch_size is 0"):
        HFEngine(max_batch_size=0)
    with pytest.raises(ConfigError, match="compact_fraction is 2"):
        HFEngine(compact_fraction=2)
