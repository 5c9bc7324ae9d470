/* What of the CUDA runtime, of cuBLAS and of cuDNN must give more than success for ONNX Runtime's CUDA provider to make a
 * session: a device that computes nothing. Every other function of theirs gives 0, see stand_in.py. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char name[256], uuid[16], luid[8];
    unsigned int luid_mask;
    size_t total, shared_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, threads[3], grid[3];
    size_t constants;
    int major, minor;
} properties;

#define DEVICE_BYTES ((size_t)64 << 30)

static int some_handle;

static int handle(void **made) { return *made = &some_handle, 0; }
static int number(int *made, int value) { return *made = value, 0; }
static int block(void **made, size_t bytes) { return *made = calloc(1, bytes ? bytes : 1), *made == NULL; }
static int copied(void *to, const void *from, size_t bytes) { return memmove(to, from, bytes), 0; }

int cudaGetDeviceCount(int *n) { return number(n, 1); }
int cudaGetDevice(int *device) { return number(device, 0); }
int cudaRuntimeGetVersion(int *version) { return number(version, 13000); }
int cudaDriverGetVersion(int *version) { return number(version, 13000); }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    return number(value, attribute == 75 ? 9 : attribute == 76 ? 0 : 128); /* compute capability 9.0 */
}
int cudaGetDeviceProperties(properties *made, int device) {
    (void)device;
    memset(made, 0, sizeof *made);
    strcpy(made->name, "none");
    made->total = DEVICE_BYTES;
    made->shared_per_block = 49152;
    made->registers_per_block = 65536;
    made->warp_size = 32;
    made->threads_per_block = 1024;
    made->major = 9;
    return 0;
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total) { return *free_bytes = *total = DEVICE_BYTES, 0; }
int cudaMalloc(void **made, size_t bytes) { return block(made, bytes); }
int cudaMallocHost(void **made, size_t bytes) { return block(made, bytes); }
int cudaHostAlloc(void **made, size_t bytes, unsigned int flags) { return (void)flags, block(made, bytes); }
int cudaFree(void *block) { return free(block), 0; }
int cudaFreeHost(void *block) { return free(block), 0; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return (void)kind, copied(to, from, bytes); }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    (void)kind, (void)stream;
    return copied(to, from, bytes);
}
int cudaStreamCreate(void **made) { return handle(made); }
int cudaStreamCreateWithFlags(void **made, unsigned int flags) { return (void)flags, handle(made); }
int cudaEventCreate(void **made) { return handle(made); }
int cudaEventCreateWithFlags(void **made, unsigned int flags) { return (void)flags, handle(made); }
int cudaMemPoolCreate(void **made, const void *of) { return (void)of, handle(made); }
const char *cudaGetErrorString(int code) { return (void)code, "an error of no device"; }
const char *cudaGetErrorName(int code) { return (void)code, "none"; }
void **__cudaRegisterFatBinary(void *code) { static void *handles; return (void)code, &handles; }
int cublasCreate_v2(void **made) { return handle(made); }
int cublasLtCreate(void **made) { return handle(made); }
int cudnnCreate(void **made) { return handle(made); }
const char *cudnnGetErrorString(int code) { return (void)code, "an error of no device"; }
size_t cudnnGetVersion(void) { return 91000; }
