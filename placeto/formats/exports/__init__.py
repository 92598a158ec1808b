"""A placement in the forms that other tools read: device maps, pipelines, pictures of modules, graphs of ops."""

from placeto.errors import PlacementError
from placeto.formats.exports.device_map import DeviceMap, device_map
from placeto.formats.exports.dot import modules_dot
from placeto.formats.exports.graphml import save_graphml
from placeto.formats.exports.torch_pipeline import TorchPipeline, save_torch_pipeline, torch_pipeline
from placeto.formats.exports.torch_replicas import save_torch_replicas

ExportError = PlacementError  # its name before, for one version
__all__ = [
    "DeviceMap",
    "PlacementError",
    "TorchPipeline",
    "device_map",
    "modules_dot",
    "save_graphml",
    "save_torch_pipeline",
    "save_torch_replicas",
    "torch_pipeline",
]
