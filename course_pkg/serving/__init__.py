"""A small vLLM: an engine that serves many requests at once from a fixed number of blocks."""

from course_pkg.serving.beams import BeamEngine, choose_beams, choose_beams_fault
from course_pkg.serving.engine import Engine, EngineCore
from course_pkg.serving.runner import ModelRunner
from course_pkg.serving.scheduler import ChunkedScheduler, PreemptingScheduler, Scheduler
from course_pkg.serving.swapping import SwappingScheduler, SwapSpace

__all__ = [
    "BeamEngine",
    "ChunkedScheduler",
    "Engine",
    "EngineCore",
    "ModelRunner",
    "PreemptingScheduler",
    "Scheduler",
    "SwapSpace",
    "SwappingScheduler",
    "choose_beams",
    "choose_beams_fault",
]
