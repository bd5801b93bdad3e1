// Swing two links, each of 1 m and 1 kg, above a line by torque at the joint between (Sutton, 1996), in the order and
// precision of `gymnasium.envs.classic_control.acrobot`; one step of the fourth-order Runge-Kutta method.

#include "../environment.h"
#include <math.h>

typedef struct {
  double at[4];  // angles of both links, and how fast these change
} acrobot;

static void acrobot_reset(void *state, const inputs *in) {
  for (int i = 0; i < 4; i++) ((acrobot *)state)->at[i] = in->random[i] * 0.2 - 0.1;
}

static void acrobot_rates(const double *s, double torque, double *rates) {
  const double centre = 0.5, inertia = 1.0, g = 9.8, cosine = cos(s[1]), sine = sin(s[1]);
  const double d1 = centre * centre + (1.0 + centre * centre + 2 * centre * cosine) + inertia + inertia;
  const double d2 = centre * centre + centre * cosine + inertia;
  const double phi2 = centre * g * cos(s[0] + s[1] - M_PI / 2.0);
  const double phi1 = -centre * (s[3] * s[3]) * sine - 2 * centre * s[3] * s[2] * sine +
                      (centre + 1.0) * g * cos(s[0] - M_PI / 2) + phi2;
  rates[0] = s[2], rates[1] = s[3];
  rates[3] = (torque + d2 / d1 * phi1 - centre * (s[2] * s[2]) * sine - phi2) /
             (centre * centre + inertia - d2 * d2 / d1);
  rates[2] = -(d2 * rates[3] + phi1) / d1;
}

static void acrobot_integrate(double *s, double torque) {
  const double seconds = 0.2, share[4] = {0.0, seconds / 2.0, seconds / 2.0, seconds};
  double k[4][4] = {{0}}, at[4];
  for (int n = 0; n < 4; n++) {
    for (int i = 0; i < 4; i++) at[i] = n ? s[i] + share[n] * k[n - 1][i] : s[i];
    acrobot_rates(at, torque, k[n]);
  }
  for (int i = 0; i < 4; i++) s[i] += seconds / 6.0 * (k[0][i] + 2 * k[1][i] + 2 * k[2][i] + k[3][i]);
}

static int acrobot_step(void *state, const inputs *in, double *reward) {
  double *s = ((acrobot *)state)->at;
  const double fastest[2] = {4 * M_PI, 9 * M_PI};
  acrobot_integrate(s, (double)(in->choice - 1));
  for (int i = 0; i < 2; i++) {
    s[i] -= rint(s[i] / (2 * M_PI)) * (2 * M_PI);  // into [-π, π]
    s[2 + i] = fmin(fmax(s[2 + i], -fastest[i]), fastest[i]);
  }
  const int over = -cos(s[0]) - cos(s[1] + s[0]) > 1.0;
  *reward = over ? 0.0 : -1.0;
  return over;
}

static void acrobot_observe(const void *state, float *observation) {
  const double *s = ((const acrobot *)state)->at;
  for (int i = 0; i < 2; i++) {
    observation[2 * i] = (float)cos(s[i]), observation[2 * i + 1] = (float)sin(s[i]);
    observation[4 + i] = (float)s[2 + i];
  }
}

static const environment acrobot_v1 = {
    .name = "Acrobot-v1", .state = sizeof(acrobot), .observations = 6, .actions = 3, .reset_draws = 4,
    .reset = acrobot_reset, .step = acrobot_step, .observe = acrobot_observe,
};
