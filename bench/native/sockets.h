/* Code that floor.c and clients.c share: many sockets behind one epoll, without TLS or with it (-DTLS -lssl -lcrypto). */
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
#ifdef TLS
#include <openssl/ssl.h>
static SSL_CTX *tls;
#endif

enum { MAX = 65536, EVENTS = 512, LINE = 2048 };

struct peer {
  int socket, has_spoken, is_open, kept_bytes;
  char *kept; /* the received bytes of a frame that is not complete yet */
  long long began;
#ifdef TLS
  SSL *tls;
#endif
};
static struct peer peers[MAX];
static int count, poller, peers_may_go;
static char buffer[1 << 20];

/* Handles the bytes received from a peer; called without bytes during a TLS handshake. Returns the number of bytes
 * handled: the others are passed again once more have been received. */
static long (*take_in)(struct peer *peer, char *bytes, long size);

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void watch(int file, uint32_t index) {
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, file, &event)) die("epoll_ctl");
}

static struct peer *add(int socket) {
  int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(socket, F_SETFL, O_NONBLOCK);
  if (count == MAX) die("too many connections");
  watch(socket, (uint32_t)count);
  struct peer *peer = &peers[count++];
  peer->socket = socket;
#ifdef TLS
  if (tls) SSL_set_fd(peer->tls = SSL_new(tls), socket);
#endif
  return peer;
}

static long get(struct peer *peer, char *bytes, size_t size) {
#ifdef TLS
  if (tls) {
    int got = SSL_read(peer->tls, bytes, (int)size);
    if (got > 0) return got;
    int error = SSL_get_error(peer->tls, got);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? -1 : 0;
  }
#endif
  ssize_t got = read(peer->socket, bytes, size);
  return got < 0 && errno != EAGAIN ? 0 : got;
}

static void put(struct peer *peer, const char *bytes, size_t size) {
  while (size) {
#ifdef TLS
    ssize_t sent = tls ? SSL_write(peer->tls, bytes, (int)size) : write(peer->socket, bytes, size);
#else
    ssize_t sent = write(peer->socket, bytes, size);
#endif
    if (sent < 0 && errno != EAGAIN) die("write");
    if (sent > 0) bytes += sent, size -= (size_t)sent;
  }
}

/* Reads from a peer and passes the bytes to take_in; returns the number of new bytes. */
static long receive(struct peer *peer) {
  long old = peer->kept_bytes, size = old, got;
  if (old) memcpy(buffer, peer->kept, (size_t)old);
  do {
    got = get(peer, buffer + size, sizeof buffer - (size_t)size);
    if (got == 0 && peers_may_go) return close(peer->socket), 0;
    if (got == 0) fprintf(stderr, "a connection was closed\n"), exit(1);
    if (got > 0) size += got;
#ifdef TLS
  } while (tls && got > 0 && size < (long)sizeof buffer);
#else
  } while (0);
#endif
  long done = take_in(peer, buffer, size), rest = size - done;
  if (rest) {
    peer->kept = realloc(peer->kept, (size_t)rest);
    memcpy(peer->kept, buffer + done, (size_t)rest);
  } else if (old) {
    free(peer->kept), peer->kept = NULL;
  }
  peer->kept_bytes = (int)rest;
  return size - old;
}

/* Handles one batch of events; `other` is called for files that are not peers. Returns the number of new bytes, or -1
 * if no event came within the wait. */
static long poll_once(int wait_ms, void (*other)(uint32_t index)) {
  struct epoll_event events[EVENTS];
  int ready = epoll_wait(poller, events, EVENTS, wait_ms);
  long total = ready > 0 ? 0 : -1;
  for (int i = 0; i < ready; i++) {
    uint32_t index = events[i].data.u32;
    if (index < MAX) total += receive(&peers[index]);
    else other(index);
  }
  return total;
}

static struct sockaddr_in loopback(int port) {
  struct sockaddr_in at = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  return at;
}
