"use strict";

/**
 * Carillon without a phone, for tests of apps: `jest.mock("carillon-react-native", () => require("carillon-react-native/jest"))`.
 * Each function is a `jest.fn()`; `emit("onClick", push)` calls the handler that the app gave to `start`.
 */

const { CarillonError } = require("./index.js");

let handlers = {};
const done = () => jest.fn(async () => {});
const Carillon = {
  start: jest.fn(async (options) => void (handlers = options)),
  getDevice: jest.fn(async () => ({ alias: null, tags: [], stags: [], attributes: {} })),
  onMessage: jest.fn(async () => false),
  requestPermission: jest.fn(async () => true),
  setAddress: jest.fn(),
  clearAddress: jest.fn(),
  report: jest.fn(),
  activity: jest.fn(),
  setBadge: jest.fn(),
  stop: done(),
  setAlias: done(),
  clearAlias: done(),
  addTags: done(),
  removeTags: done(),
  addStags: done(),
  removeStags: done(),
  setAttributes: done(),
};

module.exports = { Carillon, CarillonError, emit: async (name, value) => handlers[name]?.(value) };
