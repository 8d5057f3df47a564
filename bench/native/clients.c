/* The clients of bench.gateway, the same for every server: they open connections, count bytes and answer frames.
 *
 *   clients PORT N FILE MARKER AT_ONCE [poll] [tls]
 *     N connections to the port, AT_ONCE of them being opened at a time. Each sends its record of FILE (32-bit length,
 *     bytes) and is open once MARKER (hex) came. With `poll` it never sleeps meanwhile, as for `count`. Prints when the
 *     first began, when the last was open, and the median and the 99th percentile of the time that one took to open.
 *     Then it answers these commands on standard input:
 *     quiet MS                 reads until nothing came for so long; prints how many bytes came
 *     count BYTES              reads until so many bytes came; prints when. It polls without sleeping: real devices are
 *                              on other machines, and here each wake-up would cost the sender CPU time
 *     answer N BYTES HEX [AT TO] N frames of BYTES bytes, each answered with HEX, in which the two bytes at TO are those
 *                              at AT of the frame; prints when
 *     acknowledge N            N pushes of the device protocol, each acknowledged with its own id; prints when the first
 *                              came, when the last came, when the last acknowledgement was handed to the kernel, and all
 *                              pushes' bytes
 * Times are nanoseconds of CLOCK_MONOTONIC, the same in every process.
 */
#define _GNU_SOURCE
#include "sockets.h"

static char marker[64], answer[256];
static size_t marker_bytes, answer_bytes;
static long frame_bytes, left, total, copy_at, copy_to;
static int opened;
static long long took[MAX], first, last;
static FILE *records;

static size_t unhex(const char *hex, char *bytes) {
  size_t size = strlen(hex) / 2;
  for (size_t i = 0; i < size; i++) sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&bytes[i]);
  return size;
}

static void say_hello(struct peer *peer) {
  static char record[1 << 16];
  uint32_t size;
#ifdef TLS
  if (tls && SSL_do_handshake(peer->tls) != 1) return;
#endif
  if (peer->has_spoken) return;
  peer->has_spoken = 1;
  if (fread(&size, 4, 1, records) != 1 || size > sizeof record || fread(record, 1, size, records) != size) die("records");
  put(peer, record, size);
}

static long welcomed(struct peer *peer, char *bytes, long size) {
  if (peer->is_open) return size;
  say_hello(peer);
  if (!memmem(bytes, (size_t)size, marker, marker_bytes)) return 0;
  peer->is_open = 1;
  took[opened++] = now() - peer->began;
  return size;
}

static long counted(struct peer *peer, char *bytes, long size) {
  (void)peer, (void)bytes;
  return size;
}

static long answered(struct peer *peer, char *bytes, long size) {
  long done = 0;
  for (; size - done >= frame_bytes; done += frame_bytes, left--) {
    if (copy_to) memcpy(answer + copy_to, bytes + done + copy_at, 2);
    put(peer, answer, answer_bytes);
  }
  return done;
}

static void acknowledge(struct peer *peer, const char *text, long size) {
  char ack[128];
  const char *id = memmem(text, (size_t)size, "\"msgid\":", 8);
  if (!id) return;
  int length = snprintf(ack + 6, sizeof ack - 6, "{\"type\":\"ack\",\"msgids\":[%llu]}", strtoull(id + 8, NULL, 10));
  memcpy(ack, (char[]){(char)0x81, (char)(0x80 | length), 0, 0, 0, 0}, 6);
  last = now();
  if (!first) first = last;
  put(peer, ack, (size_t)length + 6);
  left--;
}

static long pushed(struct peer *peer, char *bytes, long size) {
  long done = 0;
  while (size - done >= 4) {
    unsigned char *head = (unsigned char *)bytes + done;
    long start = head[1] < 126 ? 2 : 4, length = head[1] < 126 ? head[1] : head[2] << 8 | head[3];
    if (size - done < start + length) break;
    acknowledge(peer, bytes + done + start, length);
    done += start + length;
  }
  total += done;
  return done;
}

static void open_one(int port) {
  struct sockaddr_in at = loopback(port);
  int one = socket(AF_INET, SOCK_STREAM, 0);
  long long began = now();
  if (one < 0 || connect(one, (struct sockaddr *)&at, sizeof at)) die("connect");
  struct peer *peer = add(one);
  peer->began = began;
#ifdef TLS
  if (tls) SSL_set_connect_state(peer->tls);
#endif
  say_hello(peer);
}

static int compare(const void *left, const void *right) {
  long long a = *(const long long *)left, b = *(const long long *)right;
  return (a > b) - (a < b);
}

static void open_all(int port, int wanted, int at_once, int wait_ms) {
  long long began = now();
  take_in = welcomed;
  while (opened < wanted) {
    while (count < wanted && count - opened < at_once) open_one(port);
    poll_once(wait_ms, NULL);
  }
  long long ended = now();
  qsort(took, (size_t)wanted, sizeof *took, compare);
  printf("%lld %lld %lld %lld\n", began, ended, took[wanted / 2], took[(long)wanted * 99 / 100]);
}

static void run_command(char *line) {
  char hex[512];
  long wait_ms, expected;
  left = total = first = copy_at = copy_to = 0;
  take_in = counted;
  if (sscanf(line, "quiet %ld", &wait_ms) == 1) {
    for (long more; (more = poll_once((int)wait_ms, NULL)) >= 0; total += more) {}
    printf("%ld\n", total);
  } else if (sscanf(line, "count %ld", &expected) == 1) {
    for (long more; total < expected;)
      if ((more = poll_once(0, NULL)) > 0) total += more;
    printf("%lld\n", now());
  } else if (sscanf(line, "answer %ld %ld %511s %ld %ld", &left, &frame_bytes, hex, &copy_at, &copy_to) >= 3) {
    answer_bytes = unhex(hex, answer);
    take_in = answered;
    while (left > 0) poll_once(-1, NULL);
    printf("%lld\n", now());
  } else if (sscanf(line, "acknowledge %ld", &left) == 1) {
    take_in = pushed;
    while (left > 0) poll_once(-1, NULL);
    printf("%lld %lld %lld %ld\n", first, last, now(), total);
  }
}

int main(int argc, char **argv) {
  if (argc < 6 || !(records = fopen(argv[3], "rb"))) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  poller = epoll_create1(0);
  int polls = argc > 6 && !strcmp(argv[6], "poll");
#ifdef TLS
  if (!strcmp(argv[argc - 1], "tls")) {
    tls = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);
  }
#endif
  marker_bytes = unhex(argv[4], marker);
  open_all(atoi(argv[1]), atoi(argv[2]), atoi(argv[5]), polls ? 0 : -1);
  for (char line[LINE]; fgets(line, sizeof line, stdin);) run_command(line);
}
