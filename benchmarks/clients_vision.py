"""Clients that are about images and sound. Imported by clients.py."""

from typing import Any

import torch
from client_table import Compile, Made, client, inferring, training
from torch import Tensor, nn


def _unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    sizes: dict[str, Any] = {"sample_size": 16, "block_out_channels": (32, 64), "cross_attention_dim": 32}
    blocks: dict[str, Any] = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    return UNet2DConditionModel(layers_per_block=1, norm_num_groups=8, attention_head_dim=8, **sizes, **blocks)


@client("diffusers", "U-Net")
def _unet_call(compile: Compile) -> Made:
    run = compile(_unet().eval())
    x, text = torch.randn(2, 4, 16, 16), torch.randn(2, 5, 32)
    return inferring(lambda: run(x, torch.tensor([3, 7]), encoder_hidden_states=text).sample)


@client("diffusers", "U-Net, training with EMA")
def _unet_training(compile: Compile) -> Made:
    from diffusers import DDPMScheduler
    from diffusers.training_utils import EMAModel

    model = _unet()
    run, average = compile(model), EMAModel(model.parameters())
    scheduler = DDPMScheduler(num_train_timesteps=100)
    x, noise, text = torch.randn(2, 4, 16, 16), torch.randn(2, 4, 16, 16), torch.randn(2, 5, 32)
    times = torch.tensor([3, 70])

    def loss() -> Tensor:
        average.step(model.parameters())
        noisy = scheduler.add_noise(x, noise, times)
        return nn.functional.mse_loss(run(noisy, times, text, return_dict=False)[0], noise)

    return training(model, loss)


@client("diffusers", "DiT")
def _dit(compile: Compile) -> Made:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=16, num_layers=2, sample_size=8).eval()
    run, x = compile(model), torch.randn(2, 4, 8, 8)
    times, labels = torch.tensor([3, 7]), torch.tensor([1, 5])
    return inferring(lambda: run(x, timestep=times, class_labels=labels).sample)


@client("diffusers", "SD3 transformer")
def _sd3(compile: Compile) -> Made:
    from diffusers import SD3Transformer2DModel

    sizes: dict[str, Any] = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4, "num_layers": 2}
    heads: dict[str, Any] = {"attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32}
    joined: dict[str, Any] = {"joint_attention_dim": 32, "pooled_projection_dim": 64, "pos_embed_max_size": 8}
    run = compile(SD3Transformer2DModel(**sizes, **heads, **joined).eval())
    x, text, pooled = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 32), torch.randn(2, 64)
    return inferring(lambda: run(x, text, pooled, torch.tensor([3, 7])).sample)


@client("diffusers", "VAE, encode and decode")
def _vae(compile: Compile) -> Made:
    from diffusers import AutoencoderKL

    blocks: dict[str, Any] = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    }
    model = AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, sample_size=16, **blocks).eval()
    encode, decode, x = compile(model.encode), compile(model.decode), torch.randn(2, 3, 16, 16)

    def call() -> Tensor:
        latent = encode(x).latent_dist.mode()
        return decode(latent).sample

    return inferring(call)


@client("diffusers", "a whole Stable Diffusion pipeline")
def _pipeline(compile: Compile) -> Made:
    from client_table import small_tokenizer
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = CLIPTextModel(
        CLIPTextConfig(vocab_size=211, num_attention_heads=4, max_position_embeddings=16, eos_token_id=2, **sizes)
    )
    vae = AutoencoderKL(block_out_channels=(16,), norm_num_groups=8, latent_channels=4)
    tokenizer = small_tokenizer()
    tokenizer.model_max_length = 16
    pipeline = StableDiffusionPipeline(
        vae, text.eval(), tokenizer, _unet().eval(), DDIMScheduler(), None, None, requires_safety_checker=False
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.unet, pipeline.vae.decode = compile(pipeline.unet), compile(pipeline.vae.decode)

    def call() -> Any:
        generator = torch.Generator().manual_seed(0)
        return pipeline("w1 w2", num_inference_steps=4, height=16, width=16, generator=generator, output_type="np")[0]

    return call


@client("timm", "ResNet, training with EMA")
def _timm_ema(compile: Compile) -> Made:
    import timm
    from timm.utils import ModelEmaV3

    model = timm.create_model("resnet18", num_classes=7)
    run, average = compile(model), ModelEmaV3(model, decay=0.9)
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 7, (4,))

    def loss() -> Tensor:
        average.update(model)
        return nn.functional.cross_entropy(run(x), y)

    return training(model, loss, torch.optim.SGD(model.parameters(), lr=1e-3))


def _timm(name: str, **more: Any) -> None:
    @client("timm", name)
    def make(compile: Compile) -> Made:
        import timm

        size = more.get("img_size", 64)
        model = timm.create_model(name, num_classes=7, **more).eval()
        run, x = compile(model), torch.randn(2, 3, size, size)
        return inferring(lambda: run(x))


_timm("vit_tiny_patch16_224", img_size=64, depth=2)
_timm("convnext_atto")
_timm("efficientnet_b0")
_timm("swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1, 1, 1), window_size=7)
_timm("mobilenetv3_small_050")


@client("torchvision", "ResNet, training with mixup and transforms")
def _torchvision(compile: Compile) -> Made:
    import torchvision
    from torchvision.transforms import v2

    model = torchvision.models.resnet18(num_classes=7)
    pictures = torch.randint(0, 255, (4, 3, 40, 40), dtype=torch.uint8)
    change = v2.Compose([v2.CenterCrop(32), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)])
    labels = torch.randint(0, 7, (4,))

    def loss(pictures: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(change(pictures)), labels)

    run = compile(loss)
    return training(model, lambda: run(pictures), torch.optim.SGD(model.parameters(), lr=1e-3))


@client("torchvision", "Faster R-CNN")
def _detection(compile: Compile) -> Made:
    from torchvision.models import mobilenet_v3_small
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator

    body = mobilenet_v3_small().features
    body.out_channels = 576
    anchors = AnchorGenerator(sizes=((16, 32),), aspect_ratios=((0.5, 1.0),))
    model = FasterRCNN(body, 4, rpn_anchor_generator=anchors, min_size=64, max_size=64).eval()
    run, pictures = compile(model), [torch.rand(3, 64, 64), torch.rand(3, 48, 64)]
    return inferring(lambda: run(pictures))


@client("torchvision", "transforms v2 on tv_tensors")
def _tv_tensors(compile: Compile) -> Made:
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    change = compile(v2.Compose([v2.Resize((24, 24)), v2.CenterCrop(16), v2.ToDtype(torch.float32, scale=True)]))
    picture = tv_tensors.Image(torch.randint(0, 255, (3, 32, 32), dtype=torch.uint8))
    boxes = tv_tensors.BoundingBoxes(torch.tensor([[2.0, 3.0, 20.0, 25.0]]), format="XYXY", canvas_size=(32, 32))

    def call() -> list[Any]:
        found = change(picture, boxes)
        return [type(found[0]).__name__, type(found[1]).__name__, *(x.as_subclass(Tensor) for x in found)]

    return call


@client("torchvision", "video and segmentation")
def _segmentation(compile: Compile) -> Made:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large
    from torchvision.models.video import r3d_18

    first = compile(lraspp_mobilenet_v3_large(weights_backbone=None, num_classes=5).eval())
    second = compile(r3d_18(num_classes=3).eval())
    picture, film = torch.randn(1, 3, 64, 64), torch.randn(1, 3, 4, 32, 32)
    return inferring(lambda: [first(picture)["out"], second(film)])


@client("segmentation-models-pytorch", "U-Net with Dice loss, training")
def _smp(compile: Compile) -> Made:
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, classes=3)
    dice = smp.losses.DiceLoss("multiclass")
    x, y = torch.randn(4, 3, 64, 64), torch.randint(0, 3, (4, 64, 64))
    run = compile(lambda x, y: dice(model(x), y))
    return training(model, lambda: run(x, y), torch.optim.SGD(model.parameters(), lr=1e-2))


@client("kornia", "filters, geometry, colour")
def _kornia(compile: Compile) -> Made:
    import kornia

    def change(x: Tensor) -> list[Tensor]:
        gray = kornia.color.rgb_to_grayscale(x)
        blurred = kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
        turned = kornia.geometry.rotate(x, torch.tensor([30.0, 60.0]))
        edges = kornia.filters.sobel(gray)
        return [kornia.color.rgb_to_hsv(blurred), turned, edges, kornia.losses.ssim_loss(x, blurred, 5)]

    run, x = compile(change), torch.rand(2, 3, 24, 24)
    return lambda: run(x)


@client("kornia", "augmentation")
def _kornia_augmentation(compile: Compile) -> Made:
    import kornia.augmentation as aug

    steps = nn.Sequential(
        aug.RandomHorizontalFlip(p=0.5), aug.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0), aug.CenterCrop(16)
    )
    run, x = compile(steps), torch.rand(2, 3, 24, 24)

    def call() -> Tensor:
        torch.manual_seed(4)
        return run(x)

    return call


@client("monai", "U-Net with Dice loss, training")
def _monai(compile: Compile) -> Made:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1)
    run, loss = compile(model), DiceCELoss(to_onehot_y=True, softmax=True)
    x, y = torch.randn(1, 1, 16, 16, 16), torch.randint(0, 2, (1, 1, 16, 16, 16))
    return training(model, lambda: loss(run(x), y))


@client("monai", "sliding windows, UNETR")
def _monai_windows(compile: Compile) -> Made:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNETR

    sizes: dict[str, Any] = {"feature_size": 4, "hidden_size": 32, "mlp_dim": 64, "num_heads": 4}
    run = compile(UNETR(1, 2, (16, 16, 16), **sizes).eval())
    x = torch.randn(1, 1, 16, 16, 24)
    return inferring(lambda: sliding_window_inference(x, (16, 16, 16), 2, run, overlap=0.25))


@client("torchaudio", "spectrograms and Conformer")
def _torchaudio(compile: Compile) -> Made:
    import torchaudio

    mel = torchaudio.transforms.MelSpectrogram(16000, n_fft=128, n_mels=16)
    model = torchaudio.models.Conformer(16, 4, 32, 2, 7).eval()

    def hear(sound: Tensor) -> Tensor:
        features = (mel(sound) + 1e-6).log().transpose(1, 2)
        return model(features, torch.tensor([features.shape[1]] * len(features)))[0]

    run, sound = compile(hear), torch.randn(2, 1600)
    return inferring(lambda: run(sound))


@client("speechbrain", "features and ECAPA-TDNN")
def _speechbrain(compile: Compile) -> Made:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    sizes: dict[str, Any] = {"channels": [16] * 4 + [48], "attention_channels": 8, "lin_neurons": 12}
    run, x = compile(ECAPA_TDNN(20, **sizes).eval()), torch.randn(2, 30, 20)
    return inferring(lambda: run(x))


@client("ultralytics", "YOLO")
def _yolo(compile: Compile) -> Made:
    from ultralytics.nn.tasks import DetectionModel

    run, x = compile(DetectionModel("yolov8n.yaml", verbose=False).eval()), torch.randn(1, 3, 64, 64)
    return inferring(lambda: run(x)[0])


@client("open_clip", "a small CLIP, training")
def _open_clip(compile: Compile) -> Made:
    from open_clip import CLIP, ClipLoss

    vision: dict[str, Any] = {"image_size": 32, "layers": 2, "width": 64, "head_width": 16, "patch_size": 8}
    text: dict[str, Any] = {"context_length": 8, "vocab_size": 211, "width": 64, "heads": 4, "layers": 2}
    model = CLIP(32, vision, text)
    run, loss = compile(model), ClipLoss()
    x, tokens = torch.randn(3, 3, 32, 32), torch.randint(0, 211, (3, 8))
    return training(model, lambda: loss(*run(x, tokens)), torch.optim.SGD(model.parameters(), lr=1e-2))


@client("vit-pytorch", "ViT, training")
def _vit(compile: Compile) -> Made:
    from vit_pytorch import ViT

    model = ViT(image_size=32, patch_size=8, num_classes=7, dim=32, depth=2, heads=2, mlp_dim=64)
    run, x, y = compile(model), torch.randn(2, 3, 32, 32), torch.randint(0, 7, (2,))
    return training(model, lambda: nn.functional.cross_entropy(run(x), y))
