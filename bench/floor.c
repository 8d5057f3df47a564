/* The least that a server and its clients can cost: epoll, one write a frame and socket, no protocol.
 *
 *   floor serve              prints its port; then on standard input
 *     broadcast BYTES          one frame to every connection; prints when it began
 *     unicast BYTES ACK ROUNDS a frame to each connection, its ack of ACK bytes read, ROUNDS times; prints begin and end
 *   floor clients PORT N FILE  N connections, each sends its record of FILE (32-bit length, bytes); prints "connected"
 *     quiet                    reads until nothing came for 300 ms; prints how many bytes came
 *     count BYTES              reads until so many bytes came; prints when
 *     answer BYTES COUNT HEX   sends HEX for each BYTES bytes of a connection, COUNT times in all; prints when
 * Times are CLOCK_MONOTONIC nanoseconds, the same in every process.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX = 65536, EVENTS = 512 };
static int sockets[MAX], count, poller;
static long pending[MAX];
static char buffer[1 << 20];

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void add(int socket) {
  int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(socket, F_SETFL, O_NONBLOCK);
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)count};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, socket, &event)) die("epoll_ctl");
  sockets[count++] = socket;
}

static void put(int socket, const char *bytes, size_t size) {
  while (size) {
    ssize_t sent = write(socket, bytes, size);
    if (sent < 0 && errno != EAGAIN) die("write");
    if (sent > 0) bytes += sent, size -= (size_t)sent;
  }
}

/* Reads what is there, up to one event batch; calls for each connection that got bytes. 0: nothing within the wait. */
static long take(int wait_ms, void (*got)(int index, long bytes)) {
  struct epoll_event events[EVENTS];
  int ready = epoll_wait(poller, events, EVENTS, wait_ms);
  long total = 0;
  for (int i = 0; i < ready; i++) {
    int index = (int)events[i].data.u32;
    ssize_t bytes = read(sockets[index], buffer, sizeof buffer);
    if (bytes == 0) fprintf(stderr, "a connection was closed\n"), exit(1);
    if (bytes < 0) continue;
    total += bytes;
    if (got) got(index, bytes);
  }
  return total;
}

static long frame_bytes, ack_bytes, left;
static char ack[256];

static void answer(int index, long bytes) {
  for (pending[index] += bytes; pending[index] >= frame_bytes && left; pending[index] -= frame_bytes, left--)
    put(sockets[index], ack, (size_t)ack_bytes);
}

static void acknowledged(int index, long bytes) {
  for (pending[index] += bytes; pending[index] >= ack_bytes; pending[index] -= ack_bytes) left--;
}

static void accept_all(int listener) {
  for (int socket; (socket = accept(listener, NULL, NULL)) >= 0;) add(socket);
}

static void serve(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 4096)) die("listen");
  getsockname(listener, (struct sockaddr *)&at, &size);
  printf("%d\n", ntohs(at.sin_port));
  static char frame[1 << 16];
  memset(frame, 'x', sizeof frame);
  char line[256];
  long rounds;
  while (fgets(line, sizeof line, stdin)) {
    accept_all(listener);
    while (take(0, NULL)) {}
    long long begin = now();
    if (sscanf(line, "broadcast %ld", &frame_bytes) == 1) {
      for (int i = 0; i < count; i++) put(sockets[i], frame, (size_t)frame_bytes);
      printf("%lld\n", begin);
    } else if (sscanf(line, "unicast %ld %ld %ld", &frame_bytes, &ack_bytes, &rounds) == 3) {
      for (; rounds; rounds--) {
        left = count;
        for (int i = 0; i < count; i++) {
          put(sockets[i], frame, (size_t)frame_bytes);
          if (i % 64 == 63) take(0, acknowledged);
        }
        while (left > 0) take(-1, acknowledged);
      }
      printf("%lld %lld\n", begin, now());
    }
  }
}

static void clients(int port, int wanted, const char *path) {
  struct sockaddr_in at = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  FILE *records = fopen(path, "rb");
  if (!records) die(path);
  for (int i = 0; i < wanted; i++) {
    uint32_t size;
    int one = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(one, (struct sockaddr *)&at, sizeof at)) die("connect");
    if (fread(&size, 4, 1, records) != 1 || fread(buffer, 1, size, records) != size) die("records");
    add(one);
    put(one, buffer, size);
  }
  printf("connected\n");
  char line[1024], hex[512];
  while (fgets(line, sizeof line, stdin)) {
    long expected, total = 0;
    memset(pending, 0, sizeof pending);
    if (!strncmp(line, "quiet", 5)) {
      for (long more; (more = take(300, NULL)); total += more) {}
      printf("%ld\n", total);
    } else if (sscanf(line, "count %ld", &expected) == 1) {
      while (total < expected) total += take(-1, NULL);
      printf("%lld\n", now());
    } else if (sscanf(line, "answer %ld %ld %511s", &frame_bytes, &left, hex) == 3) {
      ack_bytes = (long)strlen(hex) / 2;
      for (long i = 0; i < ack_bytes; i++) sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&ack[i]);
      while (left > 0) take(-1, answer);
      printf("%lld\n", now());
    }
  }
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  poller = epoll_create1(0);
  if (argc == 2 && !strcmp(argv[1], "serve")) serve();
  else if (argc == 5 && !strcmp(argv[1], "clients")) clients(atoi(argv[2]), atoi(argv[3]), argv[4]);
  else return 2;
  return 0;
}
