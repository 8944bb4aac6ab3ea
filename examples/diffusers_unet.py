"""Make images with diffusers: a U-Net of the library in the library's own pipeline, random weights.

It shows that a library's model is compiled without touching the library: one assignment, and the pipeline, its
scheduler and the loop over the steps are as they were. The images are eager's. (The U-Net predicts the image, not the
noise: untrained, it would make a difference in the last place a thousand times larger at each of the first steps.)

    pip install diffusers
    python examples/diffusers_unet.py
"""

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel
from timing import medians

import dynajit


def main(steps: int = 20, size: int = 32, width: int = 32) -> dict[str, float]:
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=size,
        block_out_channels=(width, 2 * width),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
    ).eval()
    pipeline = DDIMPipeline(unet, DDIMScheduler(prediction_type="sample"))
    pipeline.set_progress_bar_config(disable=True)

    def images() -> torch.Tensor:
        seeded = torch.Generator().manual_seed(1)
        return torch.from_numpy(
            pipeline(batch_size=2, generator=seeded, num_inference_steps=steps, output_type="np").images
        )

    expected = images()
    before = dynajit.counters()["unique_graphs"]
    compiled = pipeline.unet = dynajit.compile(unet, fullgraph=True)
    found = images()
    compiles = dynajit.counters()["unique_graphs"] - before
    apart = (found - expected).abs().max().item()
    print(f"two images of {size} x {size} in {steps} steps: {compiles} graphs, pixels at most {apart:.1e} from eager's")

    x = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        times = medians(lambda: unet(x, 10).sample, lambda: compiled(x, 10).sample, seconds=steps / 10)
    print(f"a call of the U-Net: {times[0]:.1f} ms in eager mode, {times[1]:.1f} ms compiled")
    return {"apart": apart, "compiles": compiles}


if __name__ == "__main__":
    main()
