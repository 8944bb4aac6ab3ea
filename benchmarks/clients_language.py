"""Clients that are about language: transformers and what stands on it. Imported by clients.py."""

import tempfile
from typing import Any

import torch
from client_table import Compile, Made, client, inferring, small_gpt2, small_llama, small_tokenizer, training, words
from torch import Tensor, nn


@client("transformers", "generate, greedy")
def _generate(compile: Compile) -> Made:
    model = compile(small_gpt2().eval())
    prompt = words(2, 7)
    return lambda: model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)


@client("transformers", "generate, compiled forward")
def _generate_forward(compile: Compile) -> Made:
    model = small_llama().eval()
    model.forward = compile(model.forward)
    prompt, mask = words(2, 7), torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    return lambda: model.generate(prompt, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)


@client("transformers", "generate, static cache")
def _generate_static(compile: Compile) -> Made:
    model = compile(small_llama().eval())
    prompt = words(2, 7)
    return lambda: model.generate(
        prompt, max_new_tokens=12, do_sample=False, pad_token_id=0, cache_implementation="static", disable_compile=True
    )


@client("transformers", "generate, beams")
def _generate_beams(compile: Compile) -> Made:
    model = compile(small_gpt2().eval())
    prompt = words(2, 7)
    return lambda: model.generate(prompt, max_new_tokens=8, num_beams=3, pad_token_id=0)


@client("transformers", "generate, sampling")
def _generate_sampling(compile: Compile) -> Made:
    model = compile(small_gpt2().eval())
    prompt = words(2, 7)

    def call() -> Tensor:
        torch.manual_seed(3)
        return model.generate(prompt, max_new_tokens=8, do_sample=True, top_k=20, temperature=0.7, pad_token_id=0)

    return call


@client("transformers", "encoder and decoder (T5), training")
def _t5(compile: Compile) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=211, dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config)
    run, given, labels = compile(model), words(2, 9), words(2, 5)
    return training(model, lambda: run(input_ids=given, labels=labels).loss)


@client("transformers", "BERT, lengths vary")
def _bert(compile: Compile) -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertForSequenceClassification(BertConfig(vocab_size=211, intermediate_size=128, **sizes)).eval()
    run = compile(model)
    batches = [words(2, length) for length in (9, 11, 14, 16)]
    return inferring(lambda: [run(input_ids=batch, attention_mask=batch.ne(7).long()).logits for batch in batches])


@client("transformers", "CLIP")
def _clip(compile: Compile) -> Made:
    from transformers import CLIPConfig, CLIPModel

    text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"vocab_size": 211, "eos_token_id": 210, "max_position_embeddings": 16}
    vision = {**text, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)).eval()
    run, tokens, images = compile(model), words(3, 8), torch.randn(3, 3, 32, 32)
    return inferring(lambda: run(input_ids=tokens, pixel_values=images).logits_per_image)


@client("transformers", "Whisper, generate")
def _whisper(compile: Compile) -> Made:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 211}
    tokens = {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
    config = WhisperConfig(max_source_positions=50, num_mel_bins=20, begin_suppress_tokens=None, **sizes, **tokens)
    model = WhisperForConditionalGeneration(config).eval()
    model.forward = compile(model.forward)
    sound = torch.randn(2, 20, 100)
    return lambda: model.generate(sound, max_new_tokens=8, do_sample=False)


def _trainer_arguments(**more: Any) -> Any:
    from transformers import TrainingArguments

    folder = tempfile.mkdtemp(prefix="clients-trainer-")
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    known = {"per_device_train_batch_size": 4, "max_steps": 4, "learning_rate": 1e-2, "optim": "sgd", "seed": 0}
    return TrainingArguments(output_dir=folder, **{**quiet, **known, **more})


def _token_rows(count: int = 16, length: int = 12) -> list[dict[str, Tensor]]:
    rows = [words(length) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


@client("transformers", "Trainer")
def _trainer(compile: Compile) -> Made:
    from transformers import Trainer

    model = small_gpt2()
    trainer = Trainer(model=compile(model), args=_trainer_arguments(), train_dataset=_token_rows())
    return lambda: trainer.train().training_loss, model


@client("transformers", "Trainer, checkpointing, accumulation, clipping, evaluation")
def _trainer_more(compile: Compile) -> Made:
    from transformers import Trainer

    model = small_llama()
    more = {"gradient_checkpointing": True, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5}
    more |= {"optim": "adamw_torch", "lr_scheduler_type": "cosine", "warmup_steps": 1, "learning_rate": 1e-3}
    trainer = Trainer(
        model=compile(model),
        args=_trainer_arguments(**more),
        train_dataset=_token_rows(),
        eval_dataset=_token_rows(8),
    )
    return lambda: (trainer.train().training_loss, trainer.evaluate()["eval_loss"]), model


@client("transformers", "pipeline, text classification")
def _pipeline(compile: Compile) -> Made:
    from transformers import BertConfig, BertForSequenceClassification, pipeline

    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertForSequenceClassification(BertConfig(vocab_size=211, intermediate_size=128, **sizes)).eval()
    model.forward = compile(model.forward)
    run = pipeline("text-classification", model=model, tokenizer=small_tokenizer(), device="cpu")
    return lambda: run(["w1 w2 w3", "w5 w9", "w7 w8 w9 w10 w11"])


@client("transformers", "pipeline, text generation")
def _pipeline_generation(compile: Compile) -> Made:
    from transformers import pipeline

    model = small_gpt2().eval()
    model.forward = compile(model.forward)
    run = pipeline("text-generation", model=model, tokenizer=small_tokenizer(), device="cpu")
    return lambda: run("w1 w2 w3", max_new_tokens=8, do_sample=False)


@client("accelerate", "training with accumulation and clipping")
def _accelerate(compile: Compile) -> Made:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(words(8, 12), batch_size=4)
    run, optimizer, loader = accelerator.prepare(compile(model), optimizer, loader)

    def call() -> list[float]:
        losses = []
        for batch in loader:
            with accelerator.accumulate(run):
                loss = run(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(run.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    return call, model


@client("accelerate", "bfloat16 mixed precision")
def _accelerate_mixed(compile: Compile) -> Made:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    run, optimizer = accelerator.prepare(compile(model), torch.optim.SGD(model.parameters(), lr=0.05))
    x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))
    return training(model, lambda: nn.functional.cross_entropy(run(x), y), optimizer)


@client("peft", "LoRA, training")
def _lora(compile: Compile) -> Made:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
    model = get_peft_model(small_llama(), config)
    run, batch = compile(model), words(2, 12)
    return training(model, lambda: run(input_ids=batch, labels=batch).loss)


@client("peft", "LoRA, adapters switched and merged")
def _lora_switched(compile: Compile) -> Made:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(small_llama(), config).eval()
    model.add_adapter("other", config)
    run, batch = compile(model), words(2, 12)

    def call() -> list[Tensor]:
        found = []
        for adapter in ("default", "other"):
            model.set_adapter(adapter)
            found.append(run(input_ids=batch).logits)
        with model.disable_adapter():
            found.append(run(input_ids=batch).logits)
        model.merge_adapter()
        found.append(run(input_ids=batch).logits)
        model.unmerge_adapter()
        return found

    return inferring(call)


@client("peft", "IA3 and prefix tuning")
def _prefix(compile: Compile) -> Made:
    from peft import PrefixTuningConfig, get_peft_model

    model = get_peft_model(small_llama(), PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    run, batch = compile(model), words(2, 12)
    return training(model, lambda: run(input_ids=batch, labels=batch).loss)


@client("trl", "SFTTrainer")
def _sft(compile: Compile) -> Made:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = Dataset.from_list([{"text": " ".join(f"w{(i * j) % 200}" for j in range(8))} for i in range(1, 17)])
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    sizes = {"per_device_train_batch_size": 4, "max_steps": 3, "max_length": 16, "bf16": False, "optim": "sgd"}
    arguments = SFTConfig(output_dir=tempfile.mkdtemp(prefix="clients-sft-"), learning_rate=1e-2, **quiet, **sizes)
    model = small_gpt2()
    trainer = SFTTrainer(model=compile(model), args=arguments, train_dataset=rows, processing_class=small_tokenizer())
    return lambda: trainer.train().training_loss, model


@client("trl", "DPOTrainer")
def _dpo(compile: Compile) -> Made:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = [{"prompt": f"w{i} w{i + 1}", "chosen": " w3 w4 w5", "rejected": " w6 w7"} for i in range(16)]
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    sizes = {"per_device_train_batch_size": 4, "max_steps": 3, "max_length": 16, "bf16": False, "optim": "sgd"}
    arguments = DPOConfig(output_dir=tempfile.mkdtemp(prefix="clients-dpo-"), learning_rate=1e-2, **quiet, **sizes)
    model, reference = small_gpt2(), small_gpt2()
    trainer = DPOTrainer(
        model=compile(model),
        ref_model=reference,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=small_tokenizer(),
    )
    return lambda: trainer.train().training_loss, model


@client("sentence-transformers", "encode, pooling")
def _sentences(compile: Compile) -> Made:
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel

    folder = tempfile.mkdtemp(prefix="clients-bert-")
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=211, intermediate_size=128, **sizes)).save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    body = models.Transformer(folder, max_seq_length=16)
    model = SentenceTransformer(modules=[body, models.Pooling(64), models.Normalize()], device="cpu")
    model.forward = compile(model.forward)
    return lambda: model.encode(["w1 w2 w3", "w5 w9", "w7 w8 w9 w10 w11"], show_progress_bar=False)


@client("sentence-transformers", "training, MultipleNegativesRankingLoss")
def _sentences_training(compile: Compile) -> Made:
    from sentence_transformers import SentenceTransformer, losses, models
    from transformers import BertConfig, BertModel

    folder = tempfile.mkdtemp(prefix="clients-bert-")
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    drops: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    BertModel(BertConfig(vocab_size=211, intermediate_size=128, **sizes, **drops)).save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    body = models.Transformer(folder, max_seq_length=16)
    model = SentenceTransformer(modules=[body, models.Pooling(64)], device="cpu")
    loss = compile(losses.MultipleNegativesRankingLoss(model))
    pairs = [["w1 w2 w3", "w5 w9 w3"], ["w7 w8", "w1 w4"]]
    return training(model, lambda: loss([model.preprocess(texts) for texts in pairs], None))


@client("x-transformers", "decoder, training")
def _x_transformers(compile: Compile) -> Made:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=211, max_seq_len=32, attn_layers=layers))
    run, batch = compile(model), words(2, 13)
    return training(model, lambda: run(batch))


@client("torchao", "int8 weights")
def _int8(compile: Compile) -> Made:
    from torchao.quantization import Int8WeightOnlyConfig

    return _quantised(compile, Int8WeightOnlyConfig())


@client("torchao", "int8 weights and activations")
def _int8_dynamic(compile: Compile) -> Made:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return _quantised(compile, Int8DynamicActivationInt8WeightConfig())


@client("torchao", "int4 weights")
def _int4(compile: Compile) -> Made:
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig  # the one for CPUs

    return _quantised(compile, PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False))


@client("torchao", "fp8 weights")
def _fp8(compile: Compile) -> Made:
    from torchao.quantization import Float8WeightOnlyConfig

    return _quantised(compile, Float8WeightOnlyConfig())


@client("torchao", "intx weights, 4 bits by groups")
def _intx(compile: Compile) -> Made:
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    return _quantised(compile, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))


def _quantised(compile: Compile, config: Any) -> Made:
    from torchao.quantization import quantize_

    model = small_llama(vocab_size=224).eval().to(torch.bfloat16)
    quantize_(model, config)
    run, batch = compile(model), words(2, 12)
    return inferring(lambda: run(input_ids=batch).logits)


@client("torchao", "quantisation-aware training")
def _qat(compile: Compile) -> Made:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.qat import QATConfig

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
    quantize_(model, QATConfig(base, step="prepare"))
    run, x = compile(model), torch.randn(16, 64)
    return training(model, lambda: run(x).square().mean())


@client("torchao", "8-bit AdamW")
def _adam8(compile: Compile) -> Made:
    from torchao.optim import AdamW8bit

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    run, x = compile(model), torch.randn(16, 64)
    return training(model, lambda: run(x).square().mean(), AdamW8bit(model.parameters(), lr=1e-2))


@client("ONNX Runtime", "a compiled model beside its exported one")
def _onnx(compile: Compile) -> Made:
    import io

    import onnxruntime

    model, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval(), torch.randn(5, 16)
    file = io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        theirs = torch.from_numpy(session.run(None, {name: x.numpy()})[0])
        return model(x) * 2, theirs * 2

    run = compile(both)
    return inferring(lambda: run(x))
