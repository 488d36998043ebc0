"""What holds for every family alike: heads, configs, errors, attention weights."""
import numpy as np
import pytest

from minitx import models

TEXT = dict(vocab_size=11)
DECODERS = {
    "GPT2": lambda **o: models.GPT2Config(**TEXT | dict(n_positions=8, n_embd=8, n_layer=2, n_head=2) | o),
    "Llama": lambda **o: models.LlamaConfig(**TEXT | dict(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=8) | o),
    "BERT": lambda **o: models.BertConfig(**TEXT | dict(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=8) | o),
}
ENCODER_DECODERS = {
    "T5": lambda **o: models.T5Config(**TEXT | dict(d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2) | o),
    "BART": lambda **o: models.BartConfig(**TEXT | dict(
        d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=12, decoder_ffn_dim=12, max_position_embeddings=8) | o),
    "Seq2Seq": lambda **o: models.Seq2SeqConfig(**dict(
        src_vocab_size=11, tgt_vocab_size=11, d_model=8, num_heads=2, num_encoder_layers=2, num_decoder_layers=2, d_ff=12,
        max_len=8) | o),
}
FAMILIES = DECODERS | ENCODER_DECODERS
LAYERS = dict(GPT2="n_layer", Llama="num_hidden_layers", BERT="num_hidden_layers", T5="num_layers", BART="encoder_layers",
              Seq2Seq="num_encoder_layers")
IDS, SHORT = np.array([[2, 3, 4, 5, 6], [7, 8, 9, 1, 1]]), np.array([[2, 3, 4], [5, 6, 7]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def build(family, head="default", **options):
    arguments = () if head == "default" else (head,)
    return getattr(models, family)(FAMILIES[family](**options), *arguments)


@pytest.mark.parametrize("family", DECODERS)
def test_attention_weights_of_one_stack(family):
    model = build(family).eval()
    y, weights = model(IDS, MASK, return_weights=True)
    np.testing.assert_array_equal(y.data, model(IDS, MASK).data)
    assert [w.shape for w in weights] == [(2, 2, 5, 5)] * 2
    for w in weights:
        np.testing.assert_allclose(w.data.sum(-1), 1, rtol=1e-5)
        assert (w.data[1, ..., 3:] == 0).all()


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_attention_weights_of_two_stacks(family):
    model = build(family).eval()
    y, (encoder, decoder) = model(IDS, SHORT, MASK, return_weights=True)
    np.testing.assert_array_equal(y.data, model(IDS, SHORT, MASK).data)
    assert [w.shape for w in encoder] == [(2, 2, 5, 5)] * 2
    assert [(w.shape, cross.shape) for w, cross in decoder] == [((2, 2, 3, 3), (2, 2, 3, 5))] * 2
    assert all((w.data[..., 0, 1:] == 0).all() and (cross.data[1, ..., 3:] == 0).all() for w, cross in decoder)
    memory, weights = model.encode(IDS, MASK, return_weights=True)
    np.testing.assert_array_equal(model.decode(SHORT, memory, MASK, return_weights=True)[0].data, y.data)
    np.testing.assert_array_equal(weights[0].data, encoder[0].data)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_makes_no_model(family):
    with pytest.raises(ValueError, match="-1"):
        build(family, **{LAYERS[family]: -1})
    with pytest.raises(ValueError, match=f"{family}: head must be one of .*; got 'classifier'"):
        build(family, "classifier")
    for config in {}, 7, models.ViTConfig():
        with pytest.raises(TypeError, match=f"{family}: config must be a "):
            getattr(models, family)(config)
    with pytest.raises(TypeError, match="whole number"):
        build(family, **{"src_vocab_size" if family == "Seq2Seq" else "vocab_size": 2.5})


@pytest.mark.parametrize("family", FAMILIES)
def test_errors_name_the_argument(family):
    model = build(family)
    rest = (SHORT,) if family in ENCODER_DECODERS else ()
    with pytest.raises(ValueError, match=rf"{family}: ids must be \(B, T\), got \(5,\)"):
        model(IDS[0], *rest)
    with pytest.raises(ValueError, match=rf"{family}: attention_mask has shape \(2, 4\), .*\(2, 5\)"):
        model(IDS, *rest, attention_mask=MASK[:, :4])
    with pytest.raises(TypeError, match=f"{family}: attention_mask must be bool"):
        model(IDS, *rest, attention_mask=MASK.astype(float))
    if family != "T5":
        with pytest.raises(ValueError, match=f"{family}: a sequence of 9 tokens is longer than the 8 positions: shorten"):
            model(np.ones((1, 9), int), *rest)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_errors_name_the_decoders_arguments(family):
    model = build(family)
    with pytest.raises(ValueError, match=rf"{family}: decoder_ids must be \(B, T\), got \(3,\)"):
        model.decode(SHORT[0], model.encode(IDS))
    with pytest.raises(ValueError, match=f"{family}: decoder_attention_mask has shape"):
        model(IDS, SHORT, MASK, MASK)
    with pytest.raises(ValueError, match=rf"{family}: memory \(1, 5, 8\) must be .* batch"):
        model.decode(SHORT, model.encode(IDS[:1]))


def test_an_inner_width_of_none_and_of_zero():
    assert build("GPT2").h[0].ff.net[0].out_features == 32
    with pytest.raises(ValueError, match="out_features must be at least 1, got 0"):
        build("GPT2", n_inner=0)


def test_robertas_positions_need_a_padding_id():
    with pytest.raises(ValueError, match="RoBERTa's positions begin behind pad_token_id"):
        models.BERT(models.RobertaConfig(pad_token_id=None))


@pytest.mark.parametrize("theta", [0.0, -1.0])
def test_a_base_of_no_rotation(theta):
    with pytest.raises(ValueError, match="rope_theta must be greater than 0"):
        build("Llama", rope_theta=theta)


@pytest.mark.parametrize("family", ["Llama", "BART"])
def test_a_context_of_no_tokens(family):
    with pytest.raises(ValueError, match="max_position_embeddings must be at least 1, got 0"):
        build(family, max_position_embeddings=0)
