"""Clients that train: loops of others, reinforcement learning, losses, metrics, privacy. Imported by clients.py."""

import tempfile
from typing import Any

import torch
from client_table import Compile, Made, client, inferring, training
from torch import Tensor, nn


def _mlp(inside: int = 16, out: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inside, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, out))


def _labelled(count: int = 32, inside: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(count, inside), torch.randint(0, classes, (count,))


def _lightning_parts(body: nn.Module) -> Any:
    import lightning
    from torchmetrics.classification import MulticlassAccuracy

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.accuracy = body, MulticlassAccuracy(4)
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> Tensor:
            x, y = batch
            logits = self.body(x)
            loss = nn.functional.cross_entropy(logits, y)
            self.accuracy(logits, y)
            self.log("loss", loss)
            self.log("accuracy", self.accuracy)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*_labelled()), batch_size=8)
    return Task(), loader


def _lightning_trainer() -> Any:
    import lightning

    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    folder = tempfile.mkdtemp(prefix="clients-lightning-")
    return lightning.Trainer(
        max_epochs=1, accelerator="cpu", enable_model_summary=False, default_root_dir=folder, **quiet
    )


@client("Lightning", "fit, the body compiled")
def _lightning_body(compile: Compile) -> Made:
    body = _mlp()
    task, loader = _lightning_parts(compile(body))

    def call() -> list[float]:
        _lightning_trainer().fit(task, loader)
        return task.losses[-4:]

    return call, body


@client("Lightning", "fit, the whole module compiled")
def _lightning_whole(compile: Compile) -> Made:
    body = _mlp()
    task, loader = _lightning_parts(body)
    task.training_step = compile(task.training_step)

    def call() -> list[float]:
        _lightning_trainer().fit(task, loader)
        return task.losses[-4:]

    return call, body


@client("Lightning", "Fabric, bfloat16")
def _fabric(compile: Compile) -> Made:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    body = _mlp()
    run, optimizer = fabric.setup(compile(body), torch.optim.SGD(body.parameters(), lr=0.05))
    x, y = _labelled()

    def call() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x).float(), y)
        fabric.backward(loss)
        optimizer.step()
        return loss.item()

    return call, body


@client("fastai", "Learner")
def _fastai(compile: Compile) -> Made:
    import fastai.callback.progress  # noqa: F401 - adds no_bar
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import SGD

    body = _mlp()
    rows = torch.utils.data.TensorDataset(*_labelled())
    loader = torch.utils.data.DataLoader(rows, batch_size=8)
    folder = tempfile.mkdtemp(prefix="clients-fastai-")
    learner = Learner(
        DataLoaders(loader, loader), compile(body), nn.CrossEntropyLoss(), opt_func=SGD, lr=0.05, path=folder
    )

    def call() -> list[float]:
        with learner.no_bar(), learner.no_logging():
            learner.fit(1)
        return [float(each) for each in learner.recorder.values[-1]]

    return call, body


@client("skorch", "NeuralNetClassifier")
def _skorch(compile: Compile) -> Made:
    from skorch import NeuralNetClassifier

    body = _mlp()
    net = NeuralNetClassifier(
        compile(body),
        criterion=nn.CrossEntropyLoss,
        lr=0.05,
        max_epochs=2,
        train_split=None,
        verbose=0,
        warm_start=True,
        iterator_train__shuffle=False,
    )
    x, y = (each.numpy() for each in _labelled())

    def call() -> Any:
        net.partial_fit(x, y)
        return [*(row["train_loss"] for row in net.history[-2:]), net.predict_proba(x)]

    return call, body


@client("torchmetrics", "a collection in a compiled step")
def _metrics(compile: Compile) -> Made:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score
    from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef

    each = {"accuracy": MulticlassAccuracy(4), "f1": MulticlassF1Score(4), "auroc": MulticlassAUROC(4, thresholds=5)}
    metrics, error, correlation = MetricCollection(each), MeanSquaredError(), PearsonCorrCoef()
    x, y = _labelled(inside=4)

    def step(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        metrics.update(x.softmax(-1), y)
        error.update(x[:, 0], x[:, 1])
        correlation.update(x[:, 0], x[:, 1])
        return {**metrics.compute(), "error": error.compute(), "correlation": correlation.compute()}

    run = compile(step)
    return lambda: run(x, y)


@client("torchmetrics", "functional, image and text")
def _metrics_functional(compile: Compile) -> Made:
    from torchmetrics.functional import structural_similarity_index_measure as ssim
    from torchmetrics.functional.classification import multiclass_confusion_matrix
    from torchmetrics.functional.text import perplexity

    def look(a: Tensor, b: Tensor, logits: Tensor, tokens: Tensor) -> list[Tensor]:
        matrix = multiclass_confusion_matrix(logits.flatten(0, 1), tokens.flatten(), 7)
        return [ssim(a, b, data_range=1.0), perplexity(logits, tokens), matrix]

    run = compile(look)
    inputs = torch.rand(2, 1, 16, 16), torch.rand(2, 1, 16, 16), torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    return lambda: run(*inputs)


@client("pytorch-metric-learning", "miner and triplet loss, training")
def _metric_learning(compile: Compile) -> Made:
    from pytorch_metric_learning import losses, miners

    body = _mlp(out=8)
    mine, loss = miners.BatchHardMiner(), losses.TripletMarginLoss()

    def step(x: Tensor, y: Tensor) -> Tensor:
        found = body(x)
        return loss(found, y, mine(found, y))

    run = compile(step)
    x, y = _labelled()
    return training(body, lambda: run(x, y))


@client("pytorch-metric-learning", "ArcFace and SupCon, training")
def _arcface(compile: Compile) -> Made:
    from pytorch_metric_learning import losses

    body = _mlp(out=8)
    first, second = losses.ArcFaceLoss(4, 8), losses.SupConLoss()

    def step(x: Tensor, y: Tensor) -> Tensor:
        found = body(x)
        return first(found, y) + second(found, y)

    run = compile(step)
    x, y = _labelled()
    return training(body, lambda: run(x, y))


@client("opacus", "gradients of each sample, clipped")
def _opacus(compile: Compile) -> Made:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    body = GradSampleModule(_mlp())
    plain = torch.optim.SGD(body.parameters(), lr=0.05)
    optimizer = DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=32)
    run = compile(body)
    x, y = _labelled()
    return training(body, lambda: nn.functional.cross_entropy(run(x), y), optimizer)


@client("optuna", "a study of compiled trainings")
def _optuna(compile: Compile) -> Made:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    x, y = _labelled()

    def objective(trial: Any) -> float:
        torch.manual_seed(0)
        width = trial.suggest_categorical("width", [16, 32])
        body = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
        run = compile(body)
        optimizer = torch.optim.SGD(body.parameters(), lr=trial.suggest_float("lr", 1e-3, 1e-1, log=True))
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    def call() -> list[float]:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        study.optimize(objective, n_trials=4)
        return [trial.value for trial in study.trials]

    return call


@client("stable-baselines3", "PPO on a gymnasium environment")
def _sb3(compile: Compile) -> Made:
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, seed=0, device="cpu")
    policy = model.policy
    policy.evaluate_actions = compile(policy.evaluate_actions)
    policy.forward = compile(policy.forward)

    def call() -> list[float]:
        model.learn(total_timesteps=64)
        return [model.logger.name_to_value.get("train/loss", 0.0), float(policy.value_net.weight.sum())]

    return call, policy


@client("stable-baselines3", "SAC")
def _sac(compile: Compile) -> Made:
    from stable_baselines3 import SAC

    model = SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", learning_starts=16, batch_size=16)
    model.critic.forward = compile(model.critic.forward)
    model.actor.action_log_prob = compile(model.actor.action_log_prob)

    def call() -> float:
        model.learn(total_timesteps=32, reset_num_timesteps=True)
        return float(next(model.critic.parameters()).sum())

    return call, model.critic


@client("torchrl", "PPO's loss and advantages")
def _torchrl(compile: Compile) -> Made:
    from tensordict import TensorDict
    from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.modules import ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    policy = TensorDictModule(_mlp(out=3), in_keys=["observation"], out_keys=["logits"])
    categorical = torch.distributions.Categorical
    actor: ProbabilisticTensorDictSequential = ProbabilisticActor(
        policy, in_keys=["logits"], distribution_class=categorical, return_log_prob=True
    )
    critic = ValueOperator(_mlp(out=1), in_keys=["observation"])
    loss_of, advantage = ClipPPOLoss(actor, critic), GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    shape = (4, 8)
    after = {"observation": torch.randn(*shape, 16), "reward": torch.randn(*shape, 1)}
    after |= {name: torch.zeros(*shape, 1, dtype=torch.bool) for name in ("done", "terminated")}
    data = TensorDict({"observation": torch.randn(*shape, 16), "next": after}, batch_size=shape)
    with torch.no_grad():
        actor(data)
        advantage(data)
    data = data.detach()
    run = compile(loss_of)

    def loss() -> Tensor:
        found = run(data)
        return found["loss_objective"] + found["loss_critic"]

    return training(loss_of, loss)


@client("tensordict", "TensorDict in a compiled function")
def _tensordict(compile: Compile) -> Made:
    from tensordict import TensorDict

    def step(data: Any) -> Any:
        data = data.clone()
        data["c"] = data["a"] + data["b"]
        flat = data.reshape(-1)
        return torch.stack([flat["c"], flat["a"] * 2]), (data + 1)["b"], data.select("a", "c").sum()["c"]

    run = compile(step)
    data = TensorDict({"a": torch.randn(3, 4), "b": torch.randn(3, 4)}, batch_size=[3, 4])
    return lambda: run(data)


@client("captum", "integrated gradients, saliency, layer GradCAM")
def _captum(compile: Compile) -> Made:
    from captum.attr import IntegratedGradients, LayerGradCam, Saliency

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    run, x = compile(model), torch.randn(2, 3, 8, 8)

    def call() -> list[Tensor]:
        first = IntegratedGradients(run).attribute(x, target=1, n_steps=8)
        return [first, Saliency(run).attribute(x, target=2), LayerGradCam(run, model[0]).attribute(x, target=1)]

    return call


@client("torch-optimizer and friends", "schedule-free AdamW, Lion")
def _optimizers(compile: Compile) -> Made:
    from lion_pytorch import Lion
    from schedulefree import AdamWScheduleFree

    first, second = _mlp(), _mlp()
    one, two = AdamWScheduleFree(first.parameters(), lr=1e-2), Lion(second.parameters(), lr=1e-3)
    x, y = _labelled()

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.cross_entropy(first(x), y), nn.functional.cross_entropy(second(x), y)

    run, advance = compile(step), compile(two.step)
    one.train()

    def call() -> list[float]:
        losses = run(x, y)
        torch.stack(losses).sum().backward()
        one.step()
        advance()
        one.zero_grad()
        two.zero_grad()
        return [each.item() for each in losses]

    return call, nn.ModuleList([first, second])


@client("ema-pytorch", "an average of a compiled model")
def _ema(compile: Compile) -> Made:
    from ema_pytorch import EMA

    body = _mlp()
    run, average = compile(body), EMA(body, beta=0.9, update_after_step=0, update_every=1)
    x, y = _labelled()

    def loss() -> Tensor:
        average.update()
        return nn.functional.cross_entropy(run(x), y) + average(x).detach().mean()

    return training(body, loss)


@client("pytorch-tabnet", "TabNet")
def _tabnet(compile: Compile) -> Made:
    from pytorch_tabnet.tab_network import TabNet

    groups = torch.eye(8)
    model = TabNet(8, 3, n_d=4, n_a=4, group_attention_matrix=groups).eval()
    run, x = compile(model), torch.randn(16, 8)
    return inferring(lambda: run(x))
