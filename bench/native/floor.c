/* The floor of a server's cost: epoll and one write for each frame and socket, without a protocol.
 *
 *   floor [CERTIFICATE KEY]    prints its port and serves, over TLS with the two files (PEM); what a peer sends first is
 *                              answered with "welcome". Then it answers these commands on standard input:
 *     broadcast BYTES COUNT NS   that many frames to every peer, one after the other, and NS nanoseconds of computing
 *                                before each; prints when it began
 *     unicast BYTES ACK          a frame to each peer, until of each an answer of ACK bytes came; prints begin and end
 * Times are CLOCK_MONOTONIC nanoseconds, the same in every process.
 */
#include "sockets.h"

enum { LISTENER = MAX, COMMANDS };
static const char welcome[] = "welcome";
static char frame[1 << 16], line[LINE];
static int listener;
static long ack_bytes, left;

static long greeted(struct peer *peer, char *bytes, long size) {
  (void)bytes;
  if (!peer->is_open && size) put(peer, welcome, strlen(welcome)), peer->is_open = 1;
  return size;
}

static long acknowledged(struct peer *peer, char *bytes, long size) {
  (void)peer, (void)bytes;
  left -= size / ack_bytes;
  return size - size % ack_bytes;
}

static void compute(long ns) {
  if (!ns) return;
  for (long long end = now() + ns; now() < end;) {}
}

static void broadcast(size_t bytes, int frames, long compute_ns) {
  printf("%lld\n", now());
  for (int j = 0; j < frames; j++)
    for (int i = 0; i < count; i++) compute(compute_ns), put(&peers[i], frame, bytes);
}

static void unicast(size_t bytes) {
  long long began = now();
  take_in = acknowledged;
  left = count;
  for (int i = 0; i < count; i++) {
    put(&peers[i], frame, bytes);
    if (i % 64 == 63) poll_once(0, NULL);
  }
  while (left > 0) poll_once(-1, NULL);
  take_in = greeted;
  printf("%lld %lld\n", began, now());
}

static void accept_all(void) {
  for (int socket; (socket = accept(listener, NULL, NULL)) >= 0;) {
    struct peer *peer = add(socket);
#ifdef TLS
    if (tls) SSL_set_accept_state(peer->tls);
#else
    (void)peer;
#endif
  }
}

static void on_listener_or_command(uint32_t index) {
  size_t bytes;
  int frames;
  long compute_ns;
  if (index == LISTENER) return accept_all();
  if (!fgets(line, sizeof line, stdin)) exit(0);
  if (sscanf(line, "broadcast %zu %d %ld", &bytes, &frames, &compute_ns) == 3) broadcast(bytes, frames, compute_ns);
  else if (sscanf(line, "unicast %zu %ld", &bytes, &ack_bytes) == 2) unicast(bytes);
}

static void secure(const char *certificate, const char *key) {
#ifdef TLS
  tls = SSL_CTX_new(TLS_server_method());
  SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate_chain_file(tls, certificate) != 1) die(certificate);
  if (SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1) die(key);
#else
  (void)certificate, (void)key;
  die("built without TLS");
#endif
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 3) secure(argv[1], argv[2]);
  memset(frame, 'x', sizeof frame);
  poller = epoll_create1(0);
  peers_may_go = 1;
  struct sockaddr_in at = loopback(0);
  socklen_t size = sizeof at;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (bind(listener, (struct sockaddr *)&at, size) || listen(listener, 4096)) die("listen");
  getsockname(listener, (struct sockaddr *)&at, &size);
  printf("%d\n", ntohs(at.sin_port));
  watch(listener, LISTENER);
  watch(STDIN_FILENO, COMMANDS);
  take_in = greeted;
  for (;;) poll_once(-1, on_listener_or_command);
}
