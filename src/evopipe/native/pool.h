// Threads that share members out among them. One thread computes all of a member, and takes the next that nobody has:
// so no bit depends on how many threads there are, nor on what else their processors do.

#pragma once

#include "vectors.h"

typedef int member_work(const void *job, int p);

enum { MOST_THREADS = 64, LOOKS = 4096, NICE = 5 };  // it looks for work so often before it sleeps: about 100 µs

static struct {
  pthread_mutex_t calls, lock;  // one call at a time has the threads; the other one is for those that sleep
  pthread_cond_t begun, ended;
  _Atomic uint64_t claims;  // how many members there are, 32 bits, and how many of them are taken
  atomic_int finished, starved, sleeping, waiting;
  member_work *work;
  const void *job;
  fenv_t floats;  // the caller's way with denormal numbers is everybody's
  atomic_int threads;
  int started;
  pid_t owner;  // a fork has none of the threads
} pool = {.calls = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .begun = PTHREAD_COND_INITIALIZER,
          .ended = PTHREAD_COND_INITIALIZER,
          .threads = 1};

static int members_left(void) {
  const uint64_t seen = atomic_load(&pool.claims);
  return (uint32_t)seen < seen >> 32;
}

// Compute members until all are taken.
static void take_members(int own) {
  while (members_left()) {
    const uint64_t taken = atomic_fetch_add(&pool.claims, 1);
    const int members = (int)(taken >> 32);
    if ((int)(uint32_t)taken >= members) return;
    if (!own) fesetenv(&pool.floats);
    if (pool.work(pool.job, (int)(uint32_t)taken)) atomic_store(&pool.starved, 1);
    if (atomic_fetch_add(&pool.finished, 1) + 1 == members && atomic_load(&pool.waiting)) {
      pthread_mutex_lock(&pool.lock);
      pthread_cond_signal(&pool.ended);
      pthread_mutex_unlock(&pool.lock);
    }
  }
}

static void rest(void) {
#if defined(__SSE__)
  __builtin_ia32_pause();
#endif
}

// Whether there is work for the thread that was started `number`th: later calls may want fewer.
static int wanted(intptr_t number) { return number < atomic_load(&pool.threads) - 1 && members_left(); }

static void *serve_calls(void *told) {
  const intptr_t number = (intptr_t)told;
#if defined(__linux__)
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICE);  // processes that step environments go before it
#endif
  for (;;) {
    for (int looks = 0; looks < LOOKS && !wanted(number); looks++) rest();
    if (!wanted(number)) {
      pthread_mutex_lock(&pool.lock);
      atomic_fetch_add(&pool.sleeping, 1);
      while (!wanted(number)) pthread_cond_wait(&pool.begun, &pool.lock);
      atomic_fetch_sub(&pool.sleeping, 1);
      pthread_mutex_unlock(&pool.lock);
    }
    take_members(0);
  }
  return told;
}

// Let so many threads share members out from now on, the caller's included.
void share_among(int threads) { atomic_store(&pool.threads, threads < MOST_THREADS ? threads : MOST_THREADS); }

static void start_threads(void) {
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);  // signals are the interpreter's
  for (; pool.started < pool.threads - 1; pool.started++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve_calls, (void *)(intptr_t)pool.started)) break;
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// Do some work for each member; return whether one of them lacked memory.
static int each_member(int members, member_work *work, const void *job) {
  const pid_t here = getpid();
  if (!pool.owner) pool.owner = here;
  if (pool.threads < 2 || members < 2 || here != pool.owner || pthread_mutex_trylock(&pool.calls)) {
    int starved = 0;
    for (int p = 0; p < members && !starved; p++) starved = work(job, p);
    return starved;
  }
  start_threads();
  pool.work = work, pool.job = job;
  fegetenv(&pool.floats);
  atomic_store(&pool.finished, 0), atomic_store(&pool.starved, 0);
  atomic_store(&pool.claims, (uint64_t)members << 32);
  if (atomic_load(&pool.sleeping)) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.begun);
    pthread_mutex_unlock(&pool.lock);
  }
  take_members(1);
  for (int looks = 0; looks < LOOKS && atomic_load(&pool.finished) < members; looks++) rest();
  if (atomic_load(&pool.finished) < members) {  // so that who has the last one may have this processor
    pthread_mutex_lock(&pool.lock);
    atomic_store(&pool.waiting, 1);
    while (atomic_load(&pool.finished) < members) pthread_cond_wait(&pool.ended, &pool.lock);
    atomic_store(&pool.waiting, 0);
    pthread_mutex_unlock(&pool.lock);
  }
  const int starved = atomic_load(&pool.starved);
  pthread_mutex_unlock(&pool.calls);
  return starved;
}
