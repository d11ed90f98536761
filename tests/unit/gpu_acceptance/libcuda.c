/* Copyright (c) 2026, the tenantry.gpu authors
 * GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A stand-in for the CUDA driver's library: one card with 16 GiB and a speed, its time that of this machine's clock.
 * It computes nothing: a launch makes the card busy for as long as its multiplications would take.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FMA_PER_NS 1000.0 /* 10^12 a second */
#define FMAS_PER_ITERATION 16
#define NOT_INITIALIZED 3
#define INVALID_VALUE 1
#define INVALID_PTX 218

static int ready;
static double busy_until_ns;
static size_t next_address = 1 << 21;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void sleep_until(double when_ns) {
    double left_ns = when_ns - now_ns();
    if (left_ns > 0) {
        struct timespec left = {(time_t)(left_ns / 1e9), (long)left_ns % 1000000000L};
        nanosleep(&left, NULL);
    }
}

int cuInit(unsigned flags) {
    const char *code = getenv("STANDIN_CUDA_INIT");
    if (code) return atoi(code);
    ready = flags == 0;
    return 0;
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ready ? 0 : NOT_INITIALIZED; }
int cuDeviceGetName(char *name, int length, int device) { return snprintf(name, length, "Stand-in %d", device) < 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = 16 * device + i;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = 4;
    return attribute == 16 ? 0 : INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &ready; return 0; }
int cuCtxSetCurrent(void *context) { return context == &ready ? 0 : INVALID_VALUE; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxSynchronize(void) { sleep_until(busy_until_ns); return 0; }

int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = (size_t)16 << 30; return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    *address = next_address;
    next_address += size;
    return size ? 0 : INVALID_VALUE;
}
int cuMemFree_v2(uint64_t address) { return address && address < next_address ? 0 : INVALID_VALUE; }

int cuModuleLoadData(void **module, const char *image) {
    *module = &next_address;
    return strstr(image, ".visible .entry burn(") && strncmp(image, ".version", 8) == 0 ? 0 : INVALID_PTX;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = &busy_until_ns;
    return module == &next_address && strcmp(name, "burn") == 0 ? 0 : INVALID_VALUE;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    if (function != &busy_until_ns || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra)
        return INVALID_VALUE;
    if (*(uint64_t *)parameters[0] == 0) return INVALID_VALUE;
    double fma = (double)gx * bx * *(uint32_t *)parameters[1] * FMAS_PER_ITERATION;
    double begin = busy_until_ns > now_ns() ? busy_until_ns : now_ns();
    busy_until_ns = begin + fma / FMA_PER_NS;
    return 0;
}

int cuEventCreate(void **event, unsigned flags) { *event = calloc(1, sizeof(double)); return (int)flags; }
int cuEventRecord(void *event, void *stream) {
    *(double *)event = busy_until_ns > now_ns() ? busy_until_ns : now_ns();
    return stream ? INVALID_VALUE : 0;
}
int cuEventSynchronize(void *event) { sleep_until(*(double *)event); return 0; }
int cuEventElapsedTime(float *ms, void *first, void *second) {
    *ms = (float)((*(double *)second - *(double *)first) / 1e6);
    return 0;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
