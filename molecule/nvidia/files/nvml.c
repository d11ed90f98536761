/* GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in of NVML: as many cards as the PCI bus of the test host has, of which it knows what nvidia-ctk asks for a
 * CDI description. Types are NVML's, written from its documentation.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

typedef int result;
typedef struct card *device;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

typedef struct {
  char legacy_id[16];
  unsigned int domain, bus, slot, id, subsystem;
  char bus_id[32];
} pci_info;

static char cards[16][32];
static unsigned int count;

static int is(const char *address, const char *file, const char *begins) {
  char path[300], text[16] = "";
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", address, file);
  FILE *stream = fopen(path, "r");
  if (!stream) return 0;
  if (!fgets(text, sizeof text, stream)) text[0] = 0;
  fclose(stream);
  return strncmp(text, begins, strlen(begins)) == 0;
}

static unsigned int number(device card) { return (unsigned int)((size_t)card - 1); }

result nvmlInit_v2(void) {
  struct dirent **entries;
  int found = scandir("/sys/bus/pci/devices", &entries, NULL, alphasort);
  count = 0;
  for (int i = 0; i < found && count < 16; i++)
    if (is(entries[i]->d_name, "vendor", "0x10de") && is(entries[i]->d_name, "class", "0x03"))
      snprintf(cards[count++], sizeof cards[0], "%.31s", entries[i]->d_name);
  return SUCCESS;
}
result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(result code) { return code ? "not supported by the stand-in" : "success"; }

result nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  FILE *stream = fopen("/sys/module/nvidia/version", "r");
  if (!stream) return NOT_FOUND;
  if (!fgets(version, (int)length, stream)) version[0] = 0;
  version[strcspn(version, "\n")] = 0;
  fclose(stream);
  return SUCCESS;
}
result nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }

result nvmlDeviceGetCount_v2(unsigned int *number_of) { *number_of = count; return SUCCESS; }
result nvmlDeviceGetHandleByIndex_v2(unsigned int index, device *card) {
  if (index >= count) return NOT_FOUND;
  *card = (device)(size_t)(index + 1);
  return SUCCESS;
}
result nvmlDeviceGetHandleByUUID(const char *uuid, device *card) {
  const char *tail = strrchr(uuid, '-');
  unsigned int index = 0;
  return tail && sscanf(tail, "-%x", &index) == 1 ? nvmlDeviceGetHandleByIndex_v2(index, card) : NOT_FOUND;
}
result nvmlDeviceGetIndex(device card, unsigned int *index) { *index = number(card); return SUCCESS; }
result nvmlDeviceGetMinorNumber(device card, unsigned int *minor) { *minor = number(card); return SUCCESS; }
result nvmlDeviceGetUUID(device card, char *uuid, unsigned int length) {
  snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012x", number(card));
  return SUCCESS;
}
result nvmlDeviceGetName(device card, char *name, unsigned int length) {
  (void)card;
  snprintf(name, length, "NVIDIA stand-in");
  return SUCCESS;
}
result nvmlDeviceGetPciInfo_v3(device card, pci_info *info) {
  memset(info, 0, sizeof *info);
  snprintf(info->bus_id, sizeof info->bus_id, "0000%.27s", cards[number(card)]);
  sscanf(cards[number(card)], "%x:%x:%x", &info->domain, &info->bus, &info->slot);
  return SUCCESS;
}
result nvmlDeviceGetMigMode(device card, unsigned int *current, unsigned int *pending) {
  (void)card; (void)current; (void)pending;
  return NOT_SUPPORTED;
}
result nvmlDeviceIsMigDeviceHandle(device card, unsigned int *is_one) { (void)card; *is_one = 0; return SUCCESS; }
result nvmlDeviceGetMaxMigDeviceCount(device card, unsigned int *number_of) { (void)card; *number_of = 0; return SUCCESS; }
result nvmlDeviceGetBrand(device card, unsigned int *brand) { (void)card; *brand = 2; return SUCCESS; }
result nvmlDeviceGetArchitecture(device card, unsigned int *family) { (void)card; *family = 7; return SUCCESS; }
result nvmlDeviceGetCudaComputeCapability(device card, int *major, int *minor) {
  (void)card; *major = 8; *minor = 0;
  return SUCCESS;
}
