"""kserve's own example of a custom model (docs, python/custom_model), with our trained network in it.

PYTHON kserve_example.py PACKAGE PORT [FOLDER of site-packages with torch]
"""

import base64
import io
import sys

if len(sys.argv) > 3:
    sys.path.append(sys.argv[3])

import kserve
import torch
from PIL import Image
from safetensors.torch import load as load_weights
from torchvision import transforms

from ddpipe.model.classifier import Classifier, build
from ddpipe.model.package import load_package


class PictureModel(kserve.Model):
    def __init__(self, name, uri):
        super().__init__(name)
        package = load_package(uri)
        height, width, channels = package.signature.shape
        network = build(
            package.signature.architecture, package.signature.shape, len(package.signature.classes)
        )
        self.model = Classifier(network, [0.0] * channels, [1.0] * channels)
        self.model.load_state_dict(load_weights(package.folder.read("model.safetensors")))
        self.model.eval()
        self.mode = "L" if channels == 1 else "RGB"
        self.transform = transforms.Compose(
            [
                transforms.Resize(min(height, width)),
                transforms.CenterCrop((height, width)),
                transforms.PILToTensor(),
            ]
        )
        self.ready = True

    def predict(self, payload, headers=None):
        raw = base64.b64decode(payload["instances"][0]["image"]["b64"])
        image = Image.open(io.BytesIO(raw)).convert(self.mode)
        batch = self.transform(image).permute(1, 2, 0).unsqueeze(0)
        with torch.no_grad():
            output = torch.nn.functional.softmax(self.model(batch), dim=1)[0]
        return {"predictions": output.tolist()}


if __name__ == "__main__":
    model = PictureModel("photos", sys.argv[1])
    kserve.ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, workers=1).start([model])
