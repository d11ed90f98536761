#!/usr/bin/env bash
# The lab's steps as a careful shell author would write them, without Ansible: what `make lab` is measured against.
# bench/lab.sh calls it: bench/plain.sh up|down NAME FOLDER, where FOLDER holds what bench/render.yml wrote.
set -euo pipefail
action=$1 name=$2 folder=$3
# shellcheck source=/dev/null
source "$folder/lab.env"
kube="$folder/kubeconfigs"
# Podman's settings for the lab, where it has some.
[ ! -e "$folder/containers.conf" ] || export CONTAINERS_CONF="$folder/containers.conf"

engine() { "$ENGINE" "$@"; }
on() { engine exec -i "$name-$1" "${@:2}"; }
cluster() { "$KUBECTL" --kubeconfig "$kube/$1.conf" "${@:2}"; }
helm() { "$HELM" --kubeconfig "$kube/$1.conf" upgrade --install "$2" "$3" --namespace "$4" --create-namespace --values "$5" >/dev/null; }
# wait_for SECONDS COMMAND...: until the command succeeds
wait_for() {
    local end=$((SECONDS + $1))
    until "${@:2}" >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "not within $1 s: ${*:2}" >&2; return 1; }
        sleep 0.3
    done
}
# join PID...: wait for each, and fail when one failed
join() { for pid; do wait "$pid"; done; }

down() {
    # systemd in a host does not heed the engine's stop signal: no grace, or 10 s are lost.
    engine ps -aq --filter "label=tenantry.gpu.bench=$name" | xargs -r "$ENGINE" stop -t 0 >/dev/null
    engine ps -aq --filter "label=tenantry.gpu.bench=$name" | xargs -r "$ENGINE" rm -f -v >/dev/null
    engine volume ls -q --filter "label=tenantry.gpu.bench=$name" | xargs -r "$ENGINE" volume rm >/dev/null
    engine network rm "$name" >/dev/null 2>&1 || true
}

host() { # NAME ADDRESS
    engine volume create --label "tenantry.gpu.bench=$name" "$name-$1-containerd" >/dev/null
    engine run -d --name "$name-$1" --hostname "$1" --label "tenantry.gpu.bench=$name" --network "$name" --ip "$2" \
        --privileged --cgroupns private --tmpfs /run --tmpfs /tmp --volume "$name-$1-containerd:/var/lib/containerd" \
        $([ "$ENGINE" = podman ] && echo --systemd=false) --env "container=$ENGINE" --env "TENANTRY_REGISTRY=$REGISTRY" \
        "$NODE_IMAGE" >/dev/null
    on "$1" ip -batch - <"$folder/routes.txt"
    wait_for 60 on "$1" ctr version
}

hosts() {
    engine network create --subnet "$SUBNET" "$name" >/dev/null
    engine run -d --name "$name-registry" --label "tenantry.gpu.bench=$name" --network "$name" --ip "${REGISTRY%:*}" \
        --volume "$STORAGE:/var/lib/registry" "$REGISTRY_IMAGE" >/dev/null
    local pids=()
    while read -r host address _; do host "$host" "$address" & pids+=($!); done <"$folder/hosts.txt"
    join "${pids[@]}"
}

certificate() { # NAME COMMON_NAME NAMES
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$folder/pki/$1.key" -subj "/CN=$2" 2>/dev/null |
        openssl x509 -req -CA "$folder/pki/ca.crt" -CAkey "$folder/pki/ca.key" -CAcreateserial -days 365 \
            -out "$folder/pki/$1.crt" -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3") 2>/dev/null
}

datastore() {
    mkdir -p "$folder/pki"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$folder/pki/ca.key" \
        -out "$folder/pki/ca.crt" -days 3650 -subj "/CN=datastore authority" 2>/dev/null
    certificate server datastore "$(cat "$folder/san.txt")"
    certificate root root DNS:root
    cluster management create namespace kamaji-system >/dev/null
    (cd "$folder/pki" && {
        cluster management -n kamaji-system create secret generic datastore-ca --from-file=ca.crt --from-file=ca.key
        cluster management -n kamaji-system create secret tls datastore-root --cert=root.crt --key=root.key
        cluster management -n kamaji-system create secret generic datastore-etcd --from-file=ca.crt \
            --from-file=server.crt --from-file=server.key --from-file=root.crt --from-file=root.key
        cluster management apply -f "$folder/etcd.yml"
    } >/dev/null)
    wait_for 120 cluster management -n kamaji-system exec datastore-0 -- etcdctl user add root --no-password
    wait_for 30 cluster management -n kamaji-system exec datastore-0 -- etcdctl auth enable
}

management() {
    local host address
    read -r host address _ <"$folder/hosts.txt"
    on "$host" kubeadm init --config /dev/stdin --skip-token-print <"$folder/kubeadm-init.yml" >"$folder/init.log" 2>&1
    on "$host" cat /etc/kubernetes/admin.conf >"$kube/management.conf"
    sed "s/server\.invalid/$address/" "$folder/management-cni.yml" | cluster management apply -f - >/dev/null
    helm management metallb "$METALLB_CHART" metallb-system "$folder/metallb-values.yml"
    wait_for 60 cluster management apply -f "$folder/pool.yml"
    datastore
    helm management kamaji "$KAMAJI_CHART" kamaji-system "$folder/kamaji-values.yml"
    wait_for 120 cluster management apply -f "$folder/datastore.yml"
}

control_plane() { # TENANT
    wait_for 60 cluster management apply -f "$folder/$1-control-plane.yml"
    cluster management -n "$1" wait tcp "$1" --for=jsonpath='{.status.kubernetesResources.version.status}'=Ready --timeout=180s >/dev/null
    cluster management -n "$1" get secret "$1-admin-kubeconfig" -o 'jsonpath={.data.admin\.conf}' | base64 -d >"$kube/$1.conf"
    wait_for 60 cluster "$1" -n kube-public get configmap cluster-info
    wait_for 60 cluster "$1" -n kube-system get configmap kubeadm-config kubelet-config
    local server
    server=$(cluster "$1" config view -o 'jsonpath={.clusters[0].cluster.server}')
    server=${server#https://}
    sed "s/server\.invalid/${server%:*}/" "$folder/$1-cni.yml" | cluster "$1" apply -f - >/dev/null
}

worker() { # NAME TENANT
    local id=$(openssl rand -hex 3) secret=$(openssl rand -hex 8) server authority
    server=$(cluster "$2" config view -o 'jsonpath={.clusters[0].cluster.server}')
    authority=$(cluster "$2" config view --raw -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' | base64 -d |
        openssl x509 -pubkey -noout | openssl pkey -pubin -outform der 2>/dev/null | openssl dgst -sha256 -hex | cut -d' ' -f2)
    cluster "$2" -n kube-system create secret generic "bootstrap-token-$id" --type bootstrap.kubernetes.io/token \
        --from-literal=token-id="$id" --from-literal=token-secret="$secret" --from-literal=usage-bootstrap-signing=true \
        --from-literal=usage-bootstrap-authentication=true \
        --from-literal=auth-extra-groups=system:bootstrappers:kubeadm:default-node-token >/dev/null
    on "$1" kubeadm join "${server#https://}" --token "$id.$secret" --discovery-token-ca-cert-hash "sha256:$authority" \
        --ignore-preflight-errors=SystemVerification >"$folder/$1-join.log" 2>&1
    wait_for 120 cluster "$2" wait node "$1" --for=condition=Ready --timeout=1s
    cluster "$2" -n kube-system delete secret "bootstrap-token-$id" >/dev/null
}

pod() { # NAME MEMORY_MIB CORES
    cat <<POD
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: $(grep -o 'image: .*gpu-simulator[^ ]*' "$folder/tenant-a-simulator.yml" | head -1 | cut -d' ' -f2)
      command: [sleep, infinity]
      resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: $2, nvidia.com/gpucores: $3}}
---
POD
}

gpu() { # TENANT MEMORY_MIB
    helm "$1" hami "$HAMI_CHART" hami-system "$folder/$1-hami-values.yml"
    cluster "$1" apply -f "$folder/$1-simulator.yml" >/dev/null
    wait_for 120 sh -c "'$KUBECTL' --kubeconfig '$kube/$1.conf' -n hami-system get endpointslices -l kubernetes.io/service-name=hami-scheduler -o 'jsonpath={.items[*].endpoints[*].addresses}' | grep -q ."
    wait_for 120 sh -c "'$KUBECTL' --kubeconfig '$kube/$1.conf' get nodes -o 'jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}' | grep -q '[1-9]'"
    for i in 1 2 3; do pod "share-$i" "$2" 30; done >"$folder/$1-pods.yml"
    wait_for 60 cluster "$1" apply -f "$folder/$1-pods.yml"
    cluster "$1" wait pod share-1 share-2 share-3 --for=condition=Ready --timeout=120s >/dev/null
    pod refused 300000 1 | cluster "$1" apply -f - >/dev/null
    wait_for 60 sh -c "'$KUBECTL' --kubeconfig '$kube/$1.conf' get events --field-selector involvedObject.name=refused,reason=FilteringFailed | grep -q CardInsufficientMemory"
}

each() { # FUNCTION: for every tenant at the same time
    local pids=()
    for tenant in tenant-a tenant-b; do "$1" "$tenant" "${@:2}" & pids+=($!); done
    join "${pids[@]}"
}

workers() {
    local pids=()
    while read -r host _ tenant; do [ "$tenant" = - ] || { worker "$host" "$tenant" & pids+=($!); }; done <"$folder/hosts.txt"
    join "${pids[@]}"
}

step() { "$@"; printf '  %4d s  %s\n' "$SECONDS" "${*:1:2}"; }

case $action in
    down) down ;;
    up)
        mkdir -p "$kube"
        step hosts
        step management
        step each control_plane
        step workers
        step each gpu 6000
        ;;
esac
