# Sourced by run and kubeflow, which set $checkout and $lab before: our images in the lab's nodes, and the
# variables of the cluster tests.

build_images() { # TAG NAME...: the last, of somebody's own script, is built on the trainer
  cd "$checkout" || return
  local name
  for name in "${@:2}"; do
    if [ "$name" = accelerate ]; then
      "$lab" image build "ddpipe-accelerate:$1" examples/accelerate -f examples/accelerate/Dockerfile \
        --build-arg "BASE=ddpipe-trainer:$1" || return
    else
      "$lab" image build "ddpipe-$name:$1" . -f images/Dockerfile --target "$name" || return
    fi
  done
}

name_what_tests_need() { # TAG
  local data=$checkout/../shared/data
  export DDPIPE_TEST_IMAGES="ddpipe-{}:$1" DDPIPE_TEST_OWN_IMAGE="ddpipe-accelerate:$1"
  export POD_HOST=$LAB_NODE_IP S3_ENDPOINT=$LAB_S3_ENDPOINT POD_S3_ENDPOINT=$LAB_S3_ENDPOINT_OF_PODS S3_BUCKET=$LAB_S3_BUCKET
  export AWS_ACCESS_KEY_ID=$LAB_S3_ACCESS_KEY AWS_SECRET_ACCESS_KEY=$LAB_S3_SECRET_KEY
  if [ -f "$data/cifar10.tar.gz" ]; then
    DDPIPE_TEST_CIFAR=$(realpath "$data/cifar10.tar.gz") && export DDPIPE_TEST_CIFAR
  fi
}
