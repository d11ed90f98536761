/* Copyright (c) 2026, the tenantry.gpu authors
 * GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A stand-in for HAMi-core: takes the place of dlsym, and so of every driver call that is looked up by name; holds the
 * processes that share a file to one limit of memory, and launches to a part of the card's time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define OUT_OF_MEMORY 2

typedef void *(*lookup)(void *, const char *);
static lookup real_dlsym;
static struct { uint64_t address; size_t size; } held[4096];
static size_t *used;

static void *of_driver(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    return real_dlsym(driver, name);
}

void *dlsym(void *handle, const char *name) {
    if (!real_dlsym) {
        real_dlsym = (lookup)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!real_dlsym) real_dlsym = (lookup)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        if (!real_dlsym) real_dlsym = (lookup)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
    }
    if (name[0] == 'c' && name[1] == 'u') {
        static void *self;
        if (!self) self = dlopen(getenv("STANDIN_LIBVGPU"), RTLD_LAZY);
        void *ours = real_dlsym(self, name);
        if (ours) return ours;
    }
    return real_dlsym(handle, name);
}

static size_t limit(void) {
    const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0"); /* 2048m */
    return text ? (size_t)atol(text) << 20 : 0;
}

static size_t *usage(void) {
    if (!used) {
        int file = open(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), O_RDWR | O_CREAT, 0666);
        if (ftruncate(file, sizeof *used)) abort();
        used = mmap(NULL, sizeof *used, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    return used;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = limit();
    *free = limit() - *usage();
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (*usage() + size > limit()) return OUT_OF_MEMORY;
    int code = ((int (*)(uint64_t *, size_t))of_driver("cuMemAlloc_v2"))(address, size);
    for (int i = 0; code == 0 && i < 4096; i++)
        if (!held[i].address) {
            held[i].address = *address;
            held[i].size = size;
            __atomic_add_fetch(usage(), size, __ATOMIC_SEQ_CST);
            break;
        }
    return code;
}

int cuMemFree_v2(uint64_t address) {
    for (int i = 0; i < 4096; i++)
        if (held[i].address == address) {
            __atomic_sub_fetch(usage(), held[i].size, __ATOMIC_SEQ_CST);
            held[i].address = 0;
        }
    return ((int (*)(uint64_t))of_driver("cuMemFree_v2"))(address);
}

/* A share of the card's time: what the card works is followed by the time in which it must not. */
int cuCtxSynchronize(void) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int code = ((int (*)(void))of_driver("cuCtxSynchronize"))();
    clock_gettime(CLOCK_MONOTONIC, &end);
    const char *cores = getenv("CUDA_DEVICE_SM_LIMIT");
    if (cores && atoi(cores) > 0 && atoi(cores) < 100) {
        double worked = (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) / 1e9;
        double rest = worked * (100.0 / atoi(cores) - 1);
        struct timespec pause = {(time_t)rest, (long)((rest - (time_t)rest) * 1e9)};
        nanosleep(&pause, NULL);
    }
    return code;
}
